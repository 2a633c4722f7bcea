// SPDX-License-Identifier: GPL-2.0
/* Where things are, for a monitor that reads this kernel's memory from outside (state.rs, Fact). */
#include <linux/dcache.h>
#include <linux/fdtable.h>
#include <linux/fs.h>
#include <linux/fs_struct.h>
#include <linux/mm_types.h>
#include <linux/mount.h>
#include <linux/pgtable.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include "../../fs/mount.h"
#include "internal.h"

#define FACT(name, value) (S.facts[RW_FACT_##name] = (u64)(value))
#define OFFSET(name, type, member) FACT(name, offsetof(type, member))

void __init rewind_publish_facts(void)
{
	memset(S.facts, 0xff, sizeof(S.facts));

	FACT(INIT_TASK, &init_task);
	FACT(CURRENT_TASK, &pcpu_hot.current_task);
	FACT(PAGE_OFFSET, PAGE_OFFSET);
	FACT(PHYS_BASE, phys_base);
	FACT(THREAD_SIZE, THREAD_SIZE);
	FACT(PT_REGS_SIZE, sizeof(struct pt_regs));
	FACT(SWAPPER_PG_DIR, swapper_pg_dir);
	FACT(VMEMMAP, vmemmap);
	FACT(PAGE_SIZE, sizeof(struct page));
	FACT(KERNEL_MAP, __START_KERNEL_map);
	FACT(SIZEOF_TASK, arch_task_struct_size);
	OFFSET(TASK_TASKS, struct task_struct, tasks);
	OFFSET(TASK_THREAD_NODE, struct task_struct, thread_node);
	OFFSET(TASK_SIGNAL, struct task_struct, signal);
	OFFSET(SIGNAL_THREAD_HEAD, struct signal_struct, thread_head);
	OFFSET(TASK_PID, struct task_struct, pid);
	OFFSET(TASK_TGID, struct task_struct, tgid);
	OFFSET(TASK_COMM, struct task_struct, comm);
	OFFSET(TASK_MM, struct task_struct, mm);
	OFFSET(TASK_STACK, struct task_struct, stack);
	OFFSET(TASK_STATE, struct task_struct, __state);
	OFFSET(TASK_REAL_PARENT, struct task_struct, real_parent);
	OFFSET(TASK_FILES, struct task_struct, files);
	OFFSET(TASK_FS, struct task_struct, fs);
	OFFSET(TASK_THREAD, struct task_struct, thread);
	OFFSET(THREAD_SP, struct thread_struct, sp);
	OFFSET(THREAD_FS_BASE, struct thread_struct, fsbase);
	OFFSET(THREAD_GS_BASE, struct thread_struct, gsbase);
	OFFSET(TASK_REWIND_NAME, struct task_struct, rewind.name);
	OFFSET(TASK_REWIND_SYSCALL, struct task_struct, rewind.syscall);
	OFFSET(TASK_REWIND_RETURNS, struct task_struct, rewind.returns);
	OFFSET(TASK_REWIND_RANK, struct task_struct, rewind.rank);
	OFFSET(TASK_EXIT_STATE, struct task_struct, exit_state);
	OFFSET(TASK_CRED, struct task_struct, cred);
	OFFSET(TASK_ACTIVE_MM, struct task_struct, active_mm);
	OFFSET(MM_PGD, struct mm_struct, pgd);
	OFFSET(MM_MT, struct mm_struct, mm_mt);
	OFFSET(MM_ARG_START, struct mm_struct, arg_start);
	OFFSET(MM_ARG_END, struct mm_struct, arg_end);
	OFFSET(MM_ENV_START, struct mm_struct, env_start);
	OFFSET(MM_ENV_END, struct mm_struct, env_end);
	OFFSET(MM_EXE_FILE, struct mm_struct, exe_file);
	OFFSET(MM_START_BRK, struct mm_struct, start_brk);
	OFFSET(MM_BRK, struct mm_struct, brk);
	OFFSET(MM_START_STACK, struct mm_struct, start_stack);
	OFFSET(VMA_START, struct vm_area_struct, vm_start);
	OFFSET(VMA_END, struct vm_area_struct, vm_end);
	OFFSET(VMA_FLAGS, struct vm_area_struct, vm_flags);
	OFFSET(VMA_FILE, struct vm_area_struct, vm_file);
	OFFSET(VMA_PGOFF, struct vm_area_struct, vm_pgoff);
	OFFSET(FILE_PATH, struct file, f_path);
	OFFSET(FILE_INODE, struct file, f_inode);
	OFFSET(FILE_POS, struct file, f_pos);
	OFFSET(FILE_FLAGS, struct file, f_flags);
	OFFSET(PATH_DENTRY, struct path, dentry);
	OFFSET(PATH_MNT, struct path, mnt);
	OFFSET(DENTRY_PARENT, struct dentry, d_parent);
	OFFSET(DENTRY_NAME, struct dentry, d_name);
	OFFSET(DENTRY_INODE, struct dentry, d_inode);
	OFFSET(INODE_INO, struct inode, i_ino);
	OFFSET(INODE_SIZE, struct inode, i_size);
	OFFSET(INODE_MAPPING, struct inode, i_mapping);
	OFFSET(INODE_MODE, struct inode, i_mode);
	OFFSET(INODE_SB, struct inode, i_sb);
	OFFSET(MAPPING_PAGES, struct address_space, i_pages);
	OFFSET(MOUNT_PARENT, struct mount, mnt_parent);
	OFFSET(MOUNT_MOUNTPOINT, struct mount, mnt_mountpoint);
	OFFSET(MOUNT_MNT, struct mount, mnt);
	OFFSET(MNT_ROOT, struct vfsmount, mnt_root);
	OFFSET(SB_DEV, struct super_block, s_dev);
	OFFSET(SB_TYPE, struct super_block, s_type);
	OFFSET(FS_TYPE_NAME, struct file_system_type, name);
	OFFSET(FILES_FDT, struct files_struct, fdt);
	OFFSET(FDT_MAX_FDS, struct fdtable, max_fds);
	OFFSET(FDT_FD, struct fdtable, fd);
	OFFSET(FS_PWD, struct fs_struct, pwd);
	OFFSET(FS_ROOT, struct fs_struct, root);
	OFFSET(DENTRY_SHORT_NAME, struct dentry, d_iname);
	OFFSET(FILE_OP, struct file, f_op);
	OFFSET(INODE_RDEV, struct inode, i_rdev);
	FACT(TASK_FPU, offsetof(struct task_struct, thread.fpu));
	OFFSET(FPU_FPSTATE, struct fpu, fpstate);
	OFFSET(FPSTATE_REGS, struct fpstate, regs);
	OFFSET(TASK_GROUP_LEADER, struct task_struct, group_leader);
	OFFSET(TASK_FLAGS, struct task_struct, flags);
	OFFSET(TASK_EXIT_CODE, struct task_struct, exit_code);
	OFFSET(TASK_REWIND_CLONES, struct task_struct, rewind.clones);
	OFFSET(FOLIO_INDEX, struct folio, index);
	OFFSET(FOLIO_MAPPING, struct folio, mapping);
	OFFSET(MT_ROOT, struct maple_tree, ma_root);
	OFFSET(XA_HEAD, struct xarray, xa_head);
	OFFSET(SIGNAL_FLAGS, struct signal_struct, flags);
	FACT(FPU_FXSAVE, offsetof(struct fpu, __fpstate.regs.fxsave));
	FACT(FILE_DENTRY, offsetof(struct file, f_path) + offsetof(struct path, dentry));
	OFFSET(XA_NODE_SHIFT, struct xa_node, shift);
	OFFSET(XA_NODE_SLOTS, struct xa_node, slots);
	FACT(XA_CHUNK_SHIFT, XA_CHUNK_SHIFT);
	OFFSET(CRED_UID, struct cred, uid);
	OFFSET(CRED_GID, struct cred, gid);
	OFFSET(TASK_CHILDREN, struct task_struct, children);
	OFFSET(TASK_SIBLING, struct task_struct, sibling);
}
