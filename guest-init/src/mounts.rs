//! File systems of the guest.

use std::{
    ffi::{CStr, CString},
    fs, io,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
};

use crate::{device::Device, sys};

const NO_EXEC: libc::c_ulong = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;

fn make_folder(path: &str) -> Result<(), String> {
    match fs::create_dir(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(format!("cannot make {path}: {e}")),
        _ => Ok(()),
    }
}

fn mount(
    kind: &CStr,
    source: &CStr,
    target: &str,
    flags: libc::c_ulong,
    options: &CStr,
) -> Result<(), String> {
    make_folder(target)?;
    let path = CString::new(target).map_err(|_| format!("{target} has a NUL"))?;
    sys::mount(source, &path, kind, flags, options)
        .map_err(|e| format!("cannot mount {} on {target}: {e}", kind.to_string_lossy()))
}

/// As [`mount`], for what a kernel may have been built without.
fn mount_if_known(kind: &CStr, target: &str, flags: libc::c_ulong) -> Result<(), String> {
    let known =
        fs::read_to_string("/proc/filesystems").map_err(|e| format!("cannot read /proc/filesystems: {e}"))?;
    if known.lines().any(|line| line.rsplit('\t').next() == kind.to_str().ok()) {
        mount(kind, kind, target, flags, c"")?;
    }
    Ok(())
}

/// /proc, /sys, /dev and what is inside, below `root` (`/` or `/new`).
pub(crate) fn mount_kernel_file_systems(root: &CStr) -> Result<(), String> {
    let root = root.to_str().map_err(|e| e.to_string())?.trim_end_matches('/');
    let at = |path: &str| format!("{root}{path}");
    sys::clear_umask(0o022);
    mount(c"proc", c"proc", &at("/proc"), NO_EXEC, c"")?;
    mount(c"sysfs", c"sysfs", &at("/sys"), NO_EXEC, c"")?;
    mount(c"devtmpfs", c"devtmpfs", &at("/dev"), libc::MS_NOSUID, c"mode=755")?;
    mount(
        c"devpts",
        c"devpts",
        &at("/dev/pts"),
        libc::MS_NOSUID | libc::MS_NOEXEC,
        c"gid=5,mode=620,ptmxmode=666",
    )?;
    mount(c"tmpfs", c"tmpfs", &at("/dev/shm"), libc::MS_NOSUID | libc::MS_NODEV, c"mode=1777")?;
    if Path::new(&at("/sys/fs/cgroup")).is_dir() {
        mount_if_known(c"cgroup2", &at("/sys/fs/cgroup"), NO_EXEC)?;
    }
    mount_if_known(c"mqueue", &at("/dev/mqueue"), NO_EXEC)?;
    for (link, target) in [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ] {
        match symlink(target, at(link)) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(format!("cannot make {link}: {e}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes image 0, under an overlay of `overlay_bytes` (0 = half of memory), the root of this process.
pub(crate) fn enter_image(device: &Device, overlay_bytes: u64) -> Result<(), String> {
    device.attach(0).map_err(|e| format!("cannot attach the image: {e}"))?;
    make_folder("/image")?;
    sys::mount(c"/dev/rwblk0", c"/image", c"erofs", libc::MS_RDONLY, c"").map_err(|e| {
        format!("cannot mount the image: {e}; it must be an EROFS file system of this architecture")
    })?;
    let size = if overlay_bytes == 0 { "50%".to_owned() } else { overlay_bytes.to_string() };
    let options = CString::new(format!("mode=755,size={size}")).map_err(|e| e.to_string())?;
    mount(c"tmpfs", c"tmpfs", "/overlay", 0, &options)?;
    make_folder("/overlay/upper")?;
    make_folder("/overlay/work")?;
    // The root's own mode and owner are the image's.
    let image = fs::metadata("/image").map_err(|e| format!("cannot look at the image's root: {e}"))?;
    copy_mode("/overlay/upper", &image)?;
    mount(c"overlay", c"root", "/new", 0, c"lowerdir=/image,upperdir=/overlay/upper,workdir=/overlay/work")?;
    mount_kernel_file_systems(c"/new")?;
    std::env::set_current_dir("/new").map_err(|e| format!("cannot enter the new root: {e}"))?;
    sys::mount(c".", c"/", c"", libc::MS_MOVE, c"").map_err(|e| format!("cannot move the new root: {e}"))?;
    sys::chroot(c".").map_err(|e| format!("cannot change to the new root: {e}"))?;
    std::env::set_current_dir("/").map_err(|e| format!("cannot enter the new root: {e}"))
}

fn copy_mode(path: &str, like: &fs::Metadata) -> Result<(), String> {
    use std::os::unix::fs::MetadataExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(like.mode() & 0o7777))
        .and_then(|()| std::os::unix::fs::chown(path, Some(like.uid()), Some(like.gid())))
        .map_err(|e| format!("cannot prepare the new root: {e}"))
}

/// /tmp and /run where the root has none, and /etc/hosts.
pub(crate) fn complete_root(hostname: &str) -> Result<(), String> {
    for (path, mode) in [("/tmp", 0o1777), ("/run", 0o755), ("/etc", 0o755)] {
        if fs::symlink_metadata(path).is_ok() {
            continue;
        }
        fs::create_dir(path)
            .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
            .map_err(|e| format!("cannot make {path}: {e}"))?;
    }
    if fs::symlink_metadata("/etc/hosts").is_err() {
        let text = format!("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n127.0.1.1\t{hostname}\n");
        fs::write("/etc/hosts", text).map_err(|e| format!("cannot write /etc/hosts: {e}"))?;
    }
    Ok(())
}
