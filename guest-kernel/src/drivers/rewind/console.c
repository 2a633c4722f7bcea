// SPDX-License-Identifier: GPL-2.0
/*
 * The console ttyRW0: kernel text and what init writes to /dev/console become REC_CONSOLE records; before the
 * control slot is mapped, and for what a panic says, text goes through the port.
 */
#include <linux/console.h>
#include <linux/init.h>
#include <linux/panic.h>
#include <linux/tty.h>
#include <linux/tty_driver.h>
#include "internal.h"

void rewind_console_text(const char *text, unsigned int len)
{
	while (len) {
		unsigned int n = min_t(unsigned int, len, REWIND_PAYLOAD);

		if (rewind_control)
			rewind_record(RW_REC_CONSOLE, 0, 0, text, n);
		else
			outsb(RW_CONSOLE, text, n);
		text += n;
		len -= n;
	}
}

static struct tty_driver *driver;
static struct tty_port port;
static const struct tty_port_operations port_operations;

static int rewind_tty_open(struct tty_struct *tty, struct file *file)
{
	return tty_port_open(&port, tty, file);
}

static void rewind_tty_close(struct tty_struct *tty, struct file *file)
{
	tty_port_close(&port, tty, file);
}

static void rewind_tty_hangup(struct tty_struct *tty)
{
	tty_port_hangup(&port);
}

static ssize_t rewind_tty_write(struct tty_struct *tty, const u8 *text, size_t len)
{
	rewind_console_text(text, len);
	return len;
}

static unsigned int rewind_tty_write_room(struct tty_struct *tty)
{
	return 65536;
}

static const struct tty_operations operations = {
	.open		= rewind_tty_open,
	.close		= rewind_tty_close,
	.hangup		= rewind_tty_hangup,
	.write		= rewind_tty_write,
	.write_room	= rewind_tty_write_room,
};

static void rewind_console_write(struct console *console, const char *text, unsigned int len)
{
	rewind_console_text(text, len);
}

static struct tty_driver *rewind_console_device(struct console *console, int *index)
{
	*index = 0;
	return driver;
}

static struct console console = {
	.name	= "ttyRW",
	.write	= rewind_console_write,
	.device	= rewind_console_device,
	.flags	= CON_PRINTBUFFER,
	.index	= 0,
};

static int __init rewind_console_init(void)
{
	register_console(&console);
	return 0;
}
console_initcall(rewind_console_init);

static int __init rewind_tty_init(void)
{
	int error;

	driver = tty_alloc_driver(1, TTY_DRIVER_RESET_TERMIOS | TTY_DRIVER_REAL_RAW);
	if (IS_ERR(driver))
		return PTR_ERR(driver);
	tty_port_init(&port);
	port.ops = &port_operations;
	driver->driver_name = "rewind-console";
	driver->name = "ttyRW";
	driver->type = TTY_DRIVER_TYPE_CONSOLE;
	driver->init_termios = tty_std_termios;
	tty_set_operations(driver, &operations);
	tty_port_link_device(&port, driver, 0);
	error = tty_register_driver(driver);
	if (error) {
		tty_driver_kref_put(driver);
		tty_port_destroy(&port);
	}
	return error;
}
device_initcall(rewind_tty_init);
