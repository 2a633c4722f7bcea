//! Where the guest kernel and its initramfs are.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use run::boot::Kernel;
use vmm::KernelFiles;

/// Finds and reads both files: in `$REWIND_GUEST`, beside an installed command, or in the checkout's `build/guest`.
pub(crate) fn kernel() -> Result<Kernel> {
    let mut tried = Vec::new();
    for dir in candidates() {
        let (vmlinux, initramfs) = (dir.join("vmlinux"), dir.join("initramfs.cpio"));
        if vmlinux.is_file() && initramfs.is_file() {
            return Ok(Kernel::new(KernelFiles::read(&vmlinux, &initramfs)?));
        }
        tried.push(dir.display().to_string());
    }
    bail!(
        "no guest kernel (vmlinux and initramfs.cpio) in {}: run `make build`, or set REWIND_GUEST",
        tried.join(", ")
    )
}

fn candidates() -> Vec<PathBuf> {
    if let Some(dir) = std::env::var_os("REWIND_GUEST").filter(|dir| !dir.is_empty()) {
        return vec![dir.into()];
    }
    let exe = std::env::current_exe().context("where is this program?").ok();
    let bin = exe.as_deref().and_then(std::path::Path::parent);
    let mut dirs: Vec<PathBuf> = bin.map(|bin| bin.join("../share/rewind")).into_iter().collect();
    dirs.extend(bin.map(|bin| bin.join("../../build/guest")));
    dirs
}
