//! Words for people: lines, system calls, values without a type, names much alike.

use debug::{
    files,
    kernel::{Kernel, read_virtual},
    look,
    module::{SourceFrame, demangle},
};
use vmm::address::{Gpa, Gva};

use crate::{
    access::{Call, Place},
    scope::{Scene, Symbols},
};

/// Longest source line shown.
const MOST_TEXT: usize = 100;

/// "bank.c:41" of a source frame; empty without a line.
pub fn line(frame: &SourceFrame) -> String {
    let file = frame.file.as_deref().unwrap_or_default().rsplit('/').next().unwrap_or_default();
    match frame.line {
        Some(line) if !file.is_empty() => format!("{file}:{line}"),
        _ => String::new(),
    }
}

/// Has this level of source a line, and (`own`) one of the user's own files?
pub(crate) fn counts(source: &SourceFrame, module: Option<&[u8]>, own: bool) -> bool {
    let file = source.file.as_deref().unwrap_or_default();
    source.line.is_some() && (!own || look::is_users(file, module.unwrap_or_default()))
}

/// The innermost level of source that is the user's own, else the innermost; and the one inlined into it.
pub(crate) fn own<'a>(
    sources: &'a [SourceFrame],
    module: Option<&[u8]>,
) -> Option<(&'a SourceFrame, Option<&'a SourceFrame>)> {
    let at = sources.iter().position(|source| counts(source, module, true)).unwrap_or(0);
    Some((sources.get(at)?, at.checked_sub(1).and_then(|inner| sources.get(inner))))
}

/// Line, function and text of a frame of a thread; what it called, if that is not the innermost frame.
pub fn place(kernel: &Kernel<'_>, scene: &Scene, frame: usize, symbols: &mut Symbols) -> Place {
    let own = scene.frames.get(frame).map(|frame| scene.space.source(frame.lookup)).unwrap_or_default();
    let lookup = scene.frames.get(frame).map_or(0, |frame| frame.lookup);
    let module = scene.space.module_at(lookup).map(|loaded| loaded.module.path.as_slice());
    let found = self::own(&own, module);
    let inlined = found.and_then(|(_, inner)| inner?.function.clone());
    let called = || if frame == 0 { None } else { called(kernel, scene, frame) };
    let inside = inlined.or_else(called).unwrap_or_default();
    let file = |path: &[u8]| {
        String::from_utf8_lossy(path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)).into_owned()
    };
    let module = module.map(file).unwrap_or_default();
    let Some((first, _)) = found else { return Place { inside, module, ..Place::default() } };
    let line = line(first);
    Place {
        module: if line.is_empty() { module } else { String::new() },
        line,
        function: first.function.clone().unwrap_or_default(),
        text: text(first, symbols),
        inside,
    }
}

/// The function a frame called: by its call instruction, since a function that jumps on to another leaves no frame;
/// else by the frame it made.
fn called(kernel: &Kernel<'_>, scene: &Scene, frame: usize) -> Option<String> {
    let name = |address: u64| {
        let loaded = scene.space.module_at(address)?;
        let (symbol, into) = loaded.module.symbol(address.wrapping_sub(loaded.bias))?;
        (into == 0).then(|| demangle(&symbol.name))
    };
    let by_call = scene.frames.get(frame).and_then(|frame| {
        // Callers are looked up by the last byte of the call.
        let after = frame.lookup.wrapping_add(1);
        let target = call_target(kernel, scene, after)?;
        name(target).or_else(|| name(jump_target(kernel, scene, target)?))
    });
    by_call.or_else(|| {
        let inner = scene.frames.get(frame - 1)?;
        scene.space.source(inner.lookup).last()?.function.clone()
    })
}

fn read<const N: usize>(kernel: &Kernel<'_>, scene: &Scene, at: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    scene.thread.read(kernel, Gva(at), &mut bytes).ok()?;
    Some(bytes)
}

fn word(kernel: &Kernel<'_>, scene: &Scene, at: u64) -> Option<u64> {
    read::<8>(kernel, scene, at).map(u64::from_le_bytes)
}

fn relative(after: u64, bytes: &[u8]) -> Option<u64> {
    let distance = i32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
    Some(after.wrapping_add_signed(distance.into()))
}

/// Target of the call that ends at `after`: `call rel32` or `call [rip+d]`.
fn call_target(kernel: &Kernel<'_>, scene: &Scene, after: u64) -> Option<u64> {
    let bytes = read::<6>(kernel, scene, after.wrapping_sub(6))?;
    match bytes {
        [0xff, 0x15, ..] => word(kernel, scene, relative(after, &bytes[2..])?),
        [_, 0xe8, ..] => relative(after, &bytes[2..]),
        _ => None,
    }
}

/// Target of an entry of a procedure linkage table: `jmp [rip+d]`, after an optional `endbr64`.
fn jump_target(kernel: &Kernel<'_>, scene: &Scene, at: u64) -> Option<u64> {
    let bytes = read::<11>(kernel, scene, at)?;
    let skip = if bytes.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) { 4 } else { 0 };
    let skip = skip + usize::from(bytes[skip] == 0xf2);
    let jump = bytes.get(skip..skip + 6)?;
    let after = at.wrapping_add(skip as u64 + 6);
    (jump[..2] == [0xff, 0x25]).then(|| word(kernel, scene, relative(after, &jump[2..])?)).flatten()
}

/// Line, function and text at an instruction of a process, without its stack.
pub fn place_at(sources: &[SourceFrame], module: Option<&[u8]>, symbols: &mut Symbols) -> Option<Place> {
    let (first, inner) = own(sources, module)?;
    // A line of somebody else's alone says less than the caller's.
    if !counts(first, module, true) {
        return None;
    }
    Some(Place {
        line: line(first),
        function: first.function.clone().unwrap_or_default(),
        text: text(first, symbols),
        inside: inner.and_then(|inner| inner.function.clone()).unwrap_or_default(),
        module: String::new(),
    })
}

/// The text of a line, from the guest's files.
fn text(frame: &SourceFrame, symbols: &mut Symbols) -> String {
    let (Some(file), Some(line)) = (frame.file.as_deref(), frame.line) else { return String::new() };
    symbols.source_line(file, line).map(|text| shorten(text.trim())).unwrap_or_default()
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(MOST_TEXT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Little-endian bytes as a signed number; at most 8 count.
pub fn signed(bytes: &[u8]) -> i64 {
    let size = bytes.len().min(8);
    let fill = if size > 0 && bytes[size - 1] & 0x80 != 0 { 0xff } else { 0 };
    let mut wide = [fill; 8];
    wide[..size].copy_from_slice(&bytes[..size]);
    i64::from_le_bytes(wide)
}

/// Bytes without a type.
pub fn bytes(bytes: &[u8]) -> String {
    match bytes.len() {
        1 | 2 | 4 | 8 => format!("{:#x}", signed(bytes) as u64 & (u64::MAX >> (64 - 8 * bytes.len() as u32))),
        n => {
            let shown: Vec<String> = bytes.iter().take(32).map(|byte| format!("{byte:02x}")).collect();
            format!("{}{}", shown.join(" "), if n > 32 { " ..." } else { "" })
        }
    }
}

/// Bytes of a file.
pub fn quoted(bytes: &[u8]) -> String {
    const MOST: usize = 60;
    let text = bytes[..bytes.len().min(MOST)].escape_ascii();
    format!("\"{text}\"{}", if bytes.len() > MOST { "..." } else { "" })
}

/// What an argument of a system call is.
#[derive(Clone, Copy)]
enum Kind {
    Fd,
    Number,
    /// A number of 32 bits: a process, flags.
    Int,
    Address,
    Path,
    /// A buffer, shown as such.
    Buffer,
}

/// The name of a system call.
pub fn syscall(number: u64) -> String {
    let name = usize::try_from(number).ok().and_then(syscalls::Sysno::new);
    name.map_or_else(|| format!("syscall {number}"), |name| name.name().to_owned())
}

/// Arguments of the calls that write or read a program's memory (their manual pages, section 2).
fn kinds(name: &str) -> &'static [Kind] {
    use Kind::{Address as A, Buffer as B, Fd as F, Int as I, Number as N, Path as P};
    match name {
        "read" | "write" | "getdents64" => &[F, B, N],
        "pread64" | "pwrite64" => &[F, B, N, N],
        "readv" | "writev" => &[F, A, N],
        "preadv" | "pwritev" => &[F, A, N, N],
        "recvfrom" | "sendto" => &[F, B, N, I, A, A],
        "recvmsg" | "sendmsg" => &[F, A, I],
        "recvmmsg" | "sendmmsg" => &[F, A, I, I],
        "socket" => &[I, I, I],
        "socketpair" => &[I, I, I, A],
        "accept" | "getsockname" | "getpeername" => &[F, A, A],
        "accept4" => &[F, A, A, I],
        "connect" | "bind" => &[F, A, I],
        "getsockopt" => &[F, I, I, A, A],
        "setsockopt" => &[F, I, I, A, I],
        "open" | "stat" | "lstat" | "access" | "unlink" | "mkdir" | "chdir" | "statfs" => &[P, A],
        "readlink" => &[P, B, N],
        "openat" | "newfstatat" => &[F, P, A],
        "readlinkat" => &[F, P, B, N],
        "statx" => &[F, P, I, I, A],
        "execve" => &[P],
        "fstat" | "fstatfs" => &[F, A],
        "ioctl" | "fcntl" => &[F, I, A],
        "lseek" => &[F, N, I],
        "getrandom" => &[B, N, I],
        "clock_gettime" | "clock_getres" => &[I, A],
        "clock_nanosleep" => &[I, I, A, A],
        "gettimeofday" | "time" | "uname" | "pipe" | "times" | "sysinfo" => &[A],
        "getitimer" | "timerfd_gettime" => &[I, A],
        "setitimer" | "timer_create" => &[I, A, A],
        "getrusage" | "getrlimit" | "setrlimit" => &[I, A],
        "prlimit64" => &[I, I, A, A],
        "pipe2" => &[A, I],
        "eventfd2" => &[I, I],
        "wait4" => &[I, A, I, A],
        "waitid" => &[I, I, A, I, A],
        "epoll_wait" | "epoll_pwait" => &[F, A, I, I],
        "poll" => &[A, N, I],
        "ppoll" => &[A, N, A],
        "select" | "pselect6" => &[I, A, A, A, A],
        "futex" => &[A, I, I],
        "nanosleep" => &[A, A],
        "rt_sigaction" | "rt_sigprocmask" => &[I, A, A],
        "rt_sigtimedwait" => &[A, A, A],
        "sigaltstack" => &[A, A],
        "getcwd" => &[B, N],
        "copy_file_range" => &[F, A, F, A, N, I],
        "sendfile" => &[F, F, A, N],
        "splice" => &[F, A, F, A, N],
        "mmap" => &[A, N, I, I, F, N],
        "mremap" => &[A, N, N, I, A],
        "munmap" | "mprotect" | "madvise" => &[A, N, I],
        "process_vm_readv" | "process_vm_writev" => &[I, A, N, A, N],
        "ptrace" => &[I, I, A, A],
        "set_tid_address" | "set_robust_list" | "brk" => &[A],
        "rseq" => &[A, I, I],
        "arch_prctl" => &[I, A],
        "exit" | "exit_group" | "close" => &[I],
        "kill" => &[I, I],
        "tgkill" => &[I, I, I],
        "clone" | "clone3" | "fork" | "vfork" | "rt_sigreturn" | "pause" => &[],
        _ => &[A, A, A],
    }
}

/// `read(3, buf, 4096)`, and what descriptor 3 is: "bank.log", "a pipe to thread 141 (bank)".
pub fn call(kernel: &Kernel<'_>, root: Option<Gpa>, task: Gva, call: &Call) -> (String, Option<String>) {
    let name = syscall(call.number);
    let mut shown = Vec::new();
    let mut file = None;
    for (kind, value) in kinds(&name).iter().zip(call.arguments) {
        shown.push(match kind {
            Kind::Fd => {
                if file.is_none() && value as i32 >= 0 {
                    file = descriptor(kernel, task, value as u32);
                }
                if value as i32 == -100 { "AT_FDCWD".into() } else { (value as i32).to_string() }
            }
            Kind::Number => (value as i64).to_string(),
            Kind::Int => (value as i32).to_string(),
            Kind::Buffer => "buf".into(),
            Kind::Address if value == 0 => "NULL".into(),
            Kind::Address => format!("{value:#x}"),
            Kind::Path => path(kernel, root, value).unwrap_or_else(|| format!("{value:#x}")),
        });
    }
    (format!("{name}({})", shown.join(", ")), file)
}

fn path(kernel: &Kernel<'_>, root: Option<Gpa>, at: u64) -> Option<String> {
    let mut text = Vec::new();
    while text.len() < 256 {
        let mut byte = [0];
        read_virtual(kernel.memory(), root?, Gva(at.wrapping_add(text.len() as u64)), &mut byte).ok()?;
        if byte[0] == 0 {
            break;
        }
        text.push(byte[0]);
    }
    Some(format!("\"{}\"", text.escape_ascii()))
}

/// What a descriptor of a task is, with who else has a pipe or socket.
fn descriptor(kernel: &Kernel<'_>, task: Gva, fd: u32) -> Option<String> {
    let open = files::open_files(kernel, task).ok()?;
    let file = open.into_iter().find(|file| file.fd == fd)?;
    let path = String::from_utf8_lossy(&file.path).into_owned();
    if path.starts_with('/') {
        return Some(path);
    }
    use rewind_platform::state::Fact;
    let inode = kernel.field(file.file, Fact::FileInode).ok()?;
    let own = kernel.field32(task, Fact::TaskTgid).ok()?;
    let mut peers: Vec<String> = Vec::new();
    for thread in debug::process::threads(kernel).ok()? {
        if thread.pid == own || thread.tid != thread.pid || peers.len() >= 4 {
            continue;
        }
        let others = files::open_files(kernel, thread.task).unwrap_or_default();
        let same = |other: &files::OpenFile| kernel.field(other.file, Fact::FileInode) == Ok(inode);
        if others.iter().any(same) {
            peers.push(format!("process {} ({})", thread.pid, thread.comm));
        }
    }
    let mode = kernel.field32(Gva(inode), Fact::InodeMode).unwrap_or(0) & 0o170_000;
    let what = match mode {
        0o010_000 => "a pipe".to_owned(),
        0o140_000 => "a socket".to_owned(),
        _ if path.is_empty() => "a file without a name".to_owned(),
        _ => path,
    };
    Some(if peers.is_empty() { what } else { format!("{what} shared with {}", peers.join(", ")) })
}

/// Of `known`, the names nearest to `name`: at most 3, at most a third of their letters away.
pub fn near(name: &str, known: Vec<String>) -> Vec<String> {
    let most = (name.chars().count() / 3).max(1);
    let mut found: Vec<(usize, String)> = known
        .into_iter()
        .filter(|other| other.len() <= name.len() + most && name.len() <= other.len() + most)
        .map(|other| (distance(name, &other), other))
        .filter(|(far, _)| *far <= most)
        .collect();
    found.sort();
    found.dedup();
    found.truncate(3);
    found.into_iter().map(|(_, name)| name).collect()
}

/// Letters to change, add or take away (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = before + usize::from(x != *y);
            before = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(before + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_much_alike() {
        let known = ["balance", "ballast", "total", "balance"].map(String::from).to_vec();
        assert_eq!(near("balnce", known.clone()), ["balance"]);
        assert!(near("x", known).is_empty());
    }

    #[test]
    fn plain_bytes() {
        assert_eq!(bytes(&[1, 2]), "0x201");
        assert_eq!(bytes(&[0xff; 8]), "0xffffffffffffffff");
        assert_eq!(bytes(&[1, 2, 3]), "01 02 03");
        assert_eq!(signed(&[0xfe]), -2);
    }
}
