/*
 * Firmware for QEMU that enters a 64-bit kernel the way the monitor does: memory, page tables, descriptors and boot
 * parameters are already in place (see image.rs), so all that is left is to mask the interrupt controllers and to turn
 * on long mode. 64 KiB at 0xf0000, the reset vector in the last sixteen bytes.
 *
 * The kernel reads the platform's version as four bytes from port PORT. In QEMU that is the data port of a disk, whose
 * first sector begins with the version: it is asked for here and waits in the disk's buffer.
 *
 * Symbols given by the build: PORT, ENTRY, PML4, ZERO_PAGE, GDT, GDT_LIMIT.
 */
	.code16
	.globl	_start
_start:
	cli
	movb	$0xff, %al		/* both interrupt controllers: everything masked */
	outb	%al, $0x21
	outb	%al, $0xa1
	movw	$PORT + 6, %dx		/* disk 0, LBA 0, one sector, read */
	movb	$0xe0, %al
	outb	%al, %dx
	movw	$PORT + 2, %dx
	movb	$1, %al
	outb	%al, %dx
	xorb	%al, %al
	incw	%dx
	outb	%al, %dx
	incw	%dx
	outb	%al, %dx
	incw	%dx
	outb	%al, %dx
	movw	$PORT + 7, %dx
	movb	$0x20, %al
	outb	%al, %dx
1:	inb	%dx, %al		/* until not busy and data is there */
	andb	$0x88, %al
	cmpb	$0x08, %al
	jne	1b
	lgdtl	%cs:gdtr - 0xf0000
	movl	$0x20, %eax		/* CR4.PAE */
	movl	%eax, %cr4
	movl	$PML4, %eax
	movl	%eax, %cr3
	movl	$0xc0000080, %ecx	/* EFER.LME */
	movl	$0x100, %eax
	xorl	%edx, %edx
	wrmsr
	movl	$0x80000011, %eax	/* PG, ET, PE: from real mode to long mode at once */
	movl	%eax, %cr0
	ljmpl	$0x10, $long_mode
gdtr:
	.word	GDT_LIMIT
	.long	GDT

	.code64
long_mode:
	movl	$0x18, %eax
	movl	%eax, %ds
	movl	%eax, %es
	movl	%eax, %fs
	movl	%eax, %gs
	movl	%eax, %ss
	movl	$ZERO_PAGE, %esi
	xorl	%ebx, %ebx
	xorl	%ecx, %ecx
	xorl	%edx, %edx
	xorl	%edi, %edi
	xorl	%ebp, %ebp
	xorl	%esp, %esp
	movabsq	$ENTRY, %rax
	jmp	*%rax

	.code16
	.org	0xfff0
	ljmp	$0xf000, $0
	.org	0x10000
