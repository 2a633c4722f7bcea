// SPDX-License-Identifier: GPL-2.0
/*
 * The machine as the kernel finds it: no interrupt controller, no timer chip, no clock chip, no keyboard; one
 * state page of ours and one control slot of the monitor's. Called from x86_early_init_platform_quirks().
 */
#include <linux/init.h>
#include <linux/io.h>
#include <linux/console.h>
#include <linux/panic_notifier.h>
#include <linux/reboot.h>
#include <linux/pm.h>
#include <asm/bios_ebda.h>
#include <asm/i8259.h>
#include <asm/reboot.h>
#include <asm/setup.h>
#include <asm/x86_init.h>
#include "internal.h"

struct rewind_state rewind_state __aligned(PAGE_SIZE) = {
	.magic		= RW_STATE_MAGIC_VALUE,
	.version	= RW_PLATFORM_VERSION,
	.base		= 1000000,	/* random_init() takes a clock that reads 0 for a missing one */
	.quantum	= 2000,
	.deadline	= U64_MAX,
	.horizon	= 365ULL * 86400 * NSEC_PER_SEC,
	.poll_cost	= 100,
	.page_cost	= 400,		/* 4 KiB at some 10 GB/s */
	.cores		= 1,
};
static_assert(sizeof(struct rewind_state) == PAGE_SIZE);
static_assert(offsetof(struct rewind_state, step) == RW_ST_STEP);
static_assert(offsetof(struct rewind_state, base) == RW_ST_BASE);
static_assert(offsetof(struct rewind_state, base_step) == RW_ST_BASE_STEP);
static_assert(offsetof(struct rewind_state, quantum) == RW_ST_QUANTUM);
static_assert(offsetof(struct rewind_state, deadline) == RW_ST_DEADLINE);
static_assert(offsetof(struct rewind_state, polls) == RW_ST_POLLS);
static_assert(offsetof(struct rewind_state, horizon) == RW_ST_HORIZON);
static_assert(offsetof(struct rewind_state, idling) == RW_ST_IDLING);
static_assert(offsetof(struct rewind_state, thread) == RW_ST_THREAD);
static_assert(offsetof(struct rewind_state, syscall) == RW_ST_SYSCALL);
static_assert(offsetof(struct rewind_state, returns) == RW_ST_RETURNS);
static_assert(offsetof(struct rewind_state, tid) == RW_ST_TID);
static_assert(offsetof(struct rewind_state, poll_cost) == RW_ST_POLL_COST);
static_assert(offsetof(struct rewind_state, page_cost) == RW_ST_PAGE_COST);
static_assert(offsetof(struct rewind_state, input_open) == RW_ST_INPUT_OPEN);
static_assert(offsetof(struct rewind_state, late) == RW_ST_LATE);
static_assert(offsetof(struct rewind_state, cores) == RW_ST_CORES);
static_assert(offsetof(struct rewind_state, charge_rest) == RW_ST_CHARGE_REST);
static_assert(offsetof(struct rewind_state, progress) == RW_ST_PROGRESS);
static_assert(offsetof(struct rewind_state, ranks) == RW_ST_RANKS);
static_assert(offsetof(struct rewind_state, facts) == RW_ST_FACTS);

u8 *rewind_control;

void __noreturn rewind_end(u32 reason)
{
	local_irq_disable();
	for (;;)	/* the monitor does not come back from this */
		outl(reason, RW_END);
}

static void rewind_restart(char *command)
{
	rewind_end(RW_END_RESTART);
}

static void rewind_emergency_restart(void)
{
	rewind_end(RW_END_RESTART);
}

static void rewind_power_off(void)
{
	rewind_end(RW_END_POWER_OFF);
}

static int rewind_panic(struct notifier_block *block, unsigned long event, void *text)
{
	console_flush_on_panic(CONSOLE_FLUSH_PENDING);
	rewind_end(RW_END_PANIC);
}

static struct notifier_block rewind_panic_block = { .notifier_call = rewind_panic, .priority = INT_MIN };

/* The machine has no clock chip: wall time starts at 1970 and init sets the job's epoch. */
static void rewind_get_wallclock(struct timespec64 *now)
{
	now->tv_sec = 0;
	now->tv_nsec = 0;
}

static int rewind_set_wallclock(const struct timespec64 *now)
{
	return -ENODEV;
}

static unsigned long rewind_calibrate(void)
{
	return 0;
}

static void __init rewind_late_init(void)
{
	u32 version;

	rewind_control = (u8 *)ioremap_cache(RW_CONTROL_BASE, RW_CONTROL_SIZE);
	if (!rewind_control)
		panic("rewind: cannot map the control slot");
	outl(__pa_symbol(&rewind_state) >> PAGE_SHIFT, RW_PLATFORM);
	version = inl(RW_PLATFORM);
	if (version == ~0U)	/* no device answers: memory was prepared by hand */
		version = CTL32(RW_CTL_VERSION);
	if (version != RW_PLATFORM_VERSION)
		panic("rewind: this kernel speaks platform version %u, the monitor %u: use the kernel that was built with this monitor",
		      RW_PLATFORM_VERSION, version);
	rewind_publish_facts();
	rewind_clock_init();
}

void __init rewind_setup(void)
{
	x86_platform.legacy.i8042 = X86_LEGACY_I8042_PLATFORM_ABSENT;
	x86_platform.legacy.rtc = 0;
	x86_platform.legacy.warm_reset = 0;
	x86_platform.legacy.no_vga = 1;
	x86_platform.legacy.reserve_bios_regions = 0;
	x86_platform.legacy.devices.pnpbios = 0;
	x86_platform.calibrate_cpu = rewind_calibrate;
	x86_platform.calibrate_tsc = rewind_calibrate;
	x86_platform.get_wallclock = rewind_get_wallclock;
	x86_platform.set_wallclock = rewind_set_wallclock;
	x86_platform.realmode_reserve = x86_init_noop;
	x86_platform.realmode_init = x86_init_noop;

	x86_init.resources.probe_roms = x86_init_noop;
	x86_init.resources.reserve_resources = x86_init_noop;
	x86_init.resources.dmi_setup = x86_init_noop;
	x86_init.mpparse.find_mptable = x86_init_noop;
	x86_init.mpparse.early_parse_smp_cfg = x86_init_noop;
	x86_init.mpparse.parse_smp_cfg = x86_init_noop;
	x86_init.irqs.pre_vector_init = rewind_inject_init;
	x86_init.irqs.intr_mode_select = x86_init_noop;
	x86_init.irqs.intr_mode_init = x86_init_noop;
	x86_init.timers.setup_percpu_clockev = x86_init_noop;
	x86_init.timers.wallclock_init = x86_init_noop;
	x86_init.timers.timer_init = rewind_late_init;
	legacy_pic = &null_legacy_pic;

	/* REP STOS and REP MOVS clear and copy pages: one instruction instead of a loop. */
	setup_force_cpu_cap(X86_FEATURE_REP_GOOD);

	machine_ops.restart = rewind_restart;
	machine_ops.halt = rewind_power_off;
	machine_ops.power_off = rewind_power_off;
	machine_ops.emergency_restart = rewind_emergency_restart;
	pm_power_off = rewind_power_off;
	atomic_notifier_chain_register(&panic_notifier_list, &rewind_panic_block);
}
