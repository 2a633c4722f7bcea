// SPDX-License-Identifier: GPL-2.0
/*
 * One CPU runs, S.cores are reported: by affinity calls, /sys/devices/system/cpu, /proc/cpuinfo, /proc/stat and
 * /proc/PID/status, so by sysconf and everything above it. The hooks that print them ask rewind_cores_mask().
 */
#include <linux/cpu.h>
#include <linux/device.h>
#include <linux/kobject.h>
#include "internal.h"

u64 rewind_cores_mask(void)
{
	return S.cores >= 64 ? U64_MAX : (1ULL << S.cores) - 1;
}

/* The cores a task may use, as it sees them. */
u64 rewind_affinity(struct task_struct *task)
{
	u64 mask = task->rewind.affinity & rewind_cores_mask();

	return mask ? mask : rewind_cores_mask();
}

int rewind_set_cores(unsigned long n)
{
	struct device *root = bus_get_dev_root(&cpu_subsys);
	int error = 0;
	char name[8];

	if (!root)
		return -ENODEV;
	if (n < 1 || n > RW_CORES_MAX || n < S.cores) {
		put_device(root);
		return -EINVAL;
	}
	while (S.cores < n) {
		snprintf(name, sizeof(name), "cpu%u", (u32)S.cores);
		if (!kobject_create_and_add(name, &root->kobj)) {
			error = -ENOMEM;
			break;
		}
		S.cores++;
	}
	put_device(root);
	return error;
}
