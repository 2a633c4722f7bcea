//! PID 1 of the guest machine.
//!
//! Asks the monitor for the job with one synchronous call (the boot keyframe is taken inside it), prepares the
//! root, runs the job's first process, reaps orphans, and when that process ends: kills what is left, reports the
//! declared outputs and the wait status, and powers the machine off. What cannot be done is reported by name.

mod device;
mod identity;
mod job;
mod mounts;
mod network;
mod outputs;
mod process;
mod sys;
mod terminal;

use std::{process::ExitCode, time::Duration};

use rewind_platform::record::REPORT_FAILED;

use device::Device;

/// Ticks waited for at most: one is enough.
const MOST_TICKS: usize = 100;

fn main() -> ExitCode {
    if sys::pid() != 1 {
        eprintln!("guest-init: this is the first process of a guest machine; it does nothing elsewhere");
        return ExitCode::from(2);
    }
    match start() {
        Ok(device) => {
            std::panic::set_hook(Box::new(|info| {
                // The device is opened again: a panic must be told whatever else is wrong.
                if let Ok(device) = Device::open() {
                    failed(&device, &format!("guest init failed: {info}"));
                }
                sys::power_off();
            }));
            if let Err(text) = job::run(&device) {
                failed(&device, &text);
            }
        }
        // Without the device the console is all there is.
        Err(text) => eprintln!("guest-init: {text}"),
    }
    sys::power_off()
}

/// What is the same for every run, so that it is part of the boot keyframe.
fn start() -> Result<Device, String> {
    mounts::mount_kernel_file_systems(c"/")?;
    sys::raise_open_file_limit()?;
    wait_for_fine_timers()?;
    Device::open()
}

/// Until a first tick the kernel's timers have the tick's resolution (kernel/time/hrtimer.c, hrtimer_run_queues): sleeps begun
/// before it would all end with it, whatever their length. Waiting costs virtual time only.
fn wait_for_fine_timers() -> Result<(), String> {
    // Each of these sleeps takes a tick while timers are coarse.
    for _ in 0..MOST_TICKS {
        if sys::timer_resolution()? == Duration::from_nanos(1) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(format!("the kernel's timers are still coarse after {MOST_TICKS} ticks"))
}

fn failed(device: &Device, text: &str) {
    if let Err(error) = device.report(REPORT_FAILED, text.as_bytes()) {
        eprintln!("guest-init: {text} ({error})");
    }
}
