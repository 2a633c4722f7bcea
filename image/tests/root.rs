//! The host's root, read lazily: walked through its blocks as a kernel would, kept, rebuilt from the store alone and
//! mounted; changes, secrets and forks.

mod common;

use common::{Mounted, Seen, assert_same, look};
use image::root::{HostImage, HostRoot, RootOptions};
use image::{BlockImage, ReadError};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Keeps what is read of an image, as the run layer does: what was seen once is seen always.
#[derive(Clone)]
struct Kept {
    len: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
    live: Option<HostImage>,
}

impl Kept {
    fn of(live: HostImage) -> Kept {
        Kept { len: live.len(), blocks: BTreeMap::new(), live: Some(live) }
    }
}

impl BlockImage for Kept {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        assert!(
            offset.is_multiple_of(4096) && out.len().is_multiple_of(4096),
            "the walker reads whole blocks"
        );
        for (number, part) in (offset / 4096..).zip(out.chunks_mut(4096)) {
            if !self.blocks.contains_key(&number) {
                let live = self.live.as_mut().ok_or_else(|| std::io::Error::other("never read"))?;
                let mut block = vec![0; 4096];
                live.read(number * 4096, &mut block)?;
                self.blocks.insert(number, block);
            }
            part.copy_from_slice(&self.blocks[&number]);
        }
        Ok(())
    }
}

/// Reads an image as the kernel does: from the superblock down, an inode before its data.
struct Walker<'a> {
    image: &'a mut dyn BlockImage,
    /// Blocks read, to copy them.
    read: BTreeSet<u64>,
}

struct Inode {
    mode: u16,
    size: u64,
    mtime: i64,
    nlink: u32,
    data: Vec<u8>,
}

impl Walker<'_> {
    fn bytes(&mut self, at: u64, len: usize) -> std::io::Result<Vec<u8>> {
        let first = at / 4096;
        let blocks = (at + len as u64).div_ceil(4096) - first;
        let mut out = vec![0; blocks as usize * 4096];
        self.image.read(first * 4096, &mut out)?;
        self.read.extend(first..first + blocks);
        let skip = (at - first * 4096) as usize;
        Ok(out[skip..skip + len].to_vec())
    }

    fn inode(&mut self, nid: u64) -> std::io::Result<Inode> {
        let bytes = self.bytes(nid * 32, 64)?;
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8"));
        let format = u16::from_le_bytes([bytes[0], bytes[1]]);
        let icount = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
        let xattrs = if icount == 0 { 0 } else { 12 + (icount - 1) * 4 };
        let size = long(8);
        let inline = format & 4 != 0;
        let tail = if inline { size % 4096 } else { 0 };
        let mut data = if size > tail {
            self.bytes(u64::from(word(16)) * 4096, (size - tail) as usize)?
        } else {
            vec![]
        };
        if tail > 0 {
            data.extend(self.bytes(nid * 32 + 64 + xattrs as u64, tail as usize)?);
        }
        let mode = u16::from_le_bytes([bytes[4], bytes[5]]);
        Ok(Inode { mode, size, mtime: long(32) as i64, nlink: word(44), data })
    }

    fn root(&mut self) -> std::io::Result<u64> {
        let sb = self.bytes(1024, 128)?;
        Ok(u16::from_le_bytes([sb[14], sb[15]]).into())
    }

    fn names(directory: &Inode) -> BTreeMap<Vec<u8>, u64> {
        let mut found = BTreeMap::new();
        for block in directory.data.chunks(4096) {
            let offset = |n: usize| usize::from(u16::from_le_bytes([block[n * 12 + 8], block[n * 12 + 9]]));
            let count = offset(0) / 12;
            for n in 0..count {
                let end = if n + 1 < count { offset(n + 1) } else { block.len() };
                let name = block[offset(n)..end].split(|&byte| byte == 0).next().expect("one");
                found.insert(
                    name.to_vec(),
                    u64::from_le_bytes(block[n * 12..n * 12 + 8].try_into().expect("8")),
                );
            }
        }
        found
    }

    fn find(&mut self, path: &str) -> std::io::Result<Inode> {
        let mut nid = self.root()?;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let directory = self.inode(nid)?;
            nid = *Self::names(&directory)
                .get(part.as_bytes())
                .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotFound))?;
        }
        self.inode(nid)
    }

    /// Reads everything.
    fn all(&mut self) -> std::io::Result<BTreeMap<PathBuf, u64>> {
        let mut found = BTreeMap::new();
        let mut waiting = vec![(PathBuf::from("."), self.root()?)];
        while let Some((path, nid)) = waiting.pop() {
            let inode = self.inode(nid)?;
            if inode.mode & 0o170_000 == 0o040_000 {
                for (name, child) in Self::names(&inode) {
                    if name != b"." && name != b".." {
                        let name = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&name);
                        waiting.push((path.join(name), child));
                    }
                }
            }
            found.insert(path, nid);
        }
        Ok(found)
    }
}

fn walk(image: &mut dyn BlockImage) -> Walker<'_> {
    Walker { image, read: BTreeSet::new() }
}

struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn new() -> Host {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory");
        for (name, text) in [
            ("bin/tool", "tool"),
            ("etc/passwd", "root"),
            ("etc/shadow", "secret"),
            ("home/u/.ssh/id", "secret"),
            ("home/u/.bashrc", "x"),
            ("home/u/work/main.c", "int main;"),
            ("tmp/other/file", "x"),
            ("proc/1/maps", "x"),
            ("rewind/pages", "x"),
        ] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("inside")).expect("mkdir");
            fs::write(path, text).expect("write");
        }
        Host { dir }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn options(&self, cwd: &str) -> RootOptions {
        RootOptions {
            top: self.dir.path().to_owned(),
            cwd: self.at(cwd),
            home: Some(self.at("home/u")),
            hidden: vec![self.at("rewind")],
        }
    }

    fn open(&self) -> HostRoot {
        HostRoot::new(&self.options("home/u/work")).expect("opens")
    }
}

/// What the host has, as it is shown: directories have the fixed time, each name is a file of its own.
fn shown(top: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut seen = look(top);
    for one in seen.values_mut() {
        if one.mode & 0o170_000 == 0o040_000 {
            one.mtime = (315_532_800, 0);
        } else {
            (one.nlink, one.same_as) = (1, None);
        }
    }
    seen
}

#[test]
fn everything_is_as_on_the_host_and_can_be_rebuilt_from_the_store_and_mounted() {
    let host = Host::new();
    let work = host.at("home/u/work");
    fs::write(work.join("large"), (0..1_000_000u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>())
        .expect("write");
    fs::write(work.join("empty"), "").expect("write");
    fs::set_permissions(work.join("large"), fs::Permissions::from_mode(0o4711)).expect("chmod");
    fs::hard_link(work.join("large"), work.join("linked")).expect("link");
    symlink("../x", work.join("link")).expect("symlink");
    symlink("x".repeat(4090), work.join("long-link")).expect("symlink");
    rustix::fs::lsetxattr(work.join("empty"), "user.note", b"x", rustix::fs::XattrFlags::empty())
        .expect("xattr");
    fs::create_dir(work.join("wide")).expect("mkdir");
    for n in 0..1000 {
        fs::write(work.join(format!("wide/{n}-{}", "n".repeat(n % 150))), n.to_string()).expect("write");
    }
    let root = host.open();
    let mut image = Kept::of(root.image());
    let (mut walker, length) = (walk(&mut image), 1u64 << 43);
    let found = walker.all().expect("walked");
    let read = walker.read.clone();
    assert!(image.len() > length);
    assert_eq!(image.blocks.len(), read.len());

    // Only what was kept from here on.
    let mut replayed = Kept { live: None, ..image.clone() };
    let file = tempfile::NamedTempFile::new_in("/dev/shm").expect("a tmpfs, which holds files of any length");
    file.as_file().set_len(replayed.len()).expect("truncate");
    let mut block = [0; 4096];
    for number in &read {
        replayed.read(number * 4096, &mut block).expect("kept");
        file.as_file().write_all_at(&block, number * 4096).expect("write");
    }
    assert!(replayed.read(77 * 4096, &mut block).unwrap_err().to_string().contains("never read"));
    let mounted = Mounted::new(file.path());
    assert_same(&shown(&work), &shown(&mounted.at.path().join("home/u/work")));
    let top = look(mounted.at.path());
    let names: Vec<_> = top
        .keys()
        .filter(|path| !path.starts_with("home/u/work"))
        .map(|path| path.to_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [".", "bin", "bin/tool", "etc", "etc/passwd", "home", "home/u", "home/u/.bashrc", "proc", "tmp"],
        "no secret, nothing of the running host"
    );
    assert_eq!(found.len(), top.len());

    // The same root again is the same use.
    let mut again = Kept::of(host.open().image());
    walk(&mut again).all().expect("walked");
    assert!(again.blocks == image.blocks);
}

#[test]
fn what_changes_elsewhere_moves_nothing() {
    let host = Host::new();
    let used = || {
        let mut image = Kept::of(host.open().image());
        let text = walk(&mut image).find("home/u/work/main.c").expect("found").data;
        assert_eq!(text, b"int main;");
        image.blocks
    };
    let before = used();
    fs::write(host.at("bin/tool"), vec![1; 1_000_000]).expect("write");
    fs::write(host.at("home/u/.bashrc"), "longer than before").expect("write");
    fs::write(host.at("bin/another"), "x").expect("write");
    fs::write(host.at("rewind/pages"), vec![2; 50_000]).expect("write");
    assert!(used() == before);
    fs::write(host.at("home/u/work/main.c"), "int moin;").expect("write");
    assert!(std::panic::catch_unwind(used).is_err(), "the text is another");
}

#[test]
fn a_change_since_the_beginning_is_an_error_that_names_the_file() {
    let host = Host::new();
    let root = host.open();
    let mut first = Kept::of(root.image());
    assert_eq!(walk(&mut first).find("home/u/work/main.c").expect("found").size, 9);
    fs::write(host.at("home/u/work/main.c"), "int moin;").expect("write");
    fs::write(host.at("bin/tool"), "TOOL").expect("write");
    let error = walk(&mut root.image()).find("home/u/work/main.c").map(|_| ()).expect_err("changed");
    assert!(error.to_string().contains("home/u/work/main.c changed since"), "{error}");
    assert!(error.get_ref().is_some_and(|e| e.is::<ReadError>()));
    // What a run of the family has used stays what it was.
    let text = walk(&mut first).find("home/u/work/main.c").expect("kept").data;
    assert_eq!(text, b"int main;");
    let mut next = Kept { live: Some(root.image()), ..first };
    assert_eq!(walk(&mut next).find("home/u/work/main.c").expect("kept").data, b"int main;");
    let error = walk(&mut root.image()).find("bin/tool").map(|_| ()).expect_err("changed");
    assert!(error.to_string().contains("bin/tool changed since"), "{error}");
    fs::write(host.at("etc/new"), "x").expect("write");
    let error = walk(&mut root.image()).find("etc/passwd").map(|_| ()).expect_err("changed");
    assert!(error.to_string().contains("etc changed since"), "{error}");
}

#[test]
fn a_run_of_its_own_sees_what_changed_before_it_looked() {
    let host = Host::new();
    let root = HostRoot::moving(&host.options("home/u/work")).expect("opens");
    fs::write(host.at("home/u/.bash_history"), "made while it runs").expect("write");
    fs::write(host.at("bin/tool"), "TOOL").expect("write");
    let image = root.image();
    let mut first = Kept::of(image.clone());
    assert_eq!(walk(&mut first).find("home/u/.bash_history").expect("seen").data, b"made while it runs");
    assert_eq!(walk(&mut first).find("bin/tool").expect("seen").data, b"TOOL");
    // What was looked at stays as it was, also for one who asks for the rest of it later.
    std::thread::sleep(Duration::from_millis(20));
    fs::write(host.at("bin/tool"), "tool").expect("write");
    let error = walk(&mut image.clone()).find("bin/tool").map(|_| ()).expect_err("another version");
    assert!(error.to_string().contains("bin/tool changed since"), "{error}");
    // A fork goes on from the run's last look.
    let forked = HostRoot::resume(&host.options("home/u/work"), &image.origin()).expect("opens");
    let mut fork = Kept { live: Some(forked.image()), ..first };
    assert_eq!(walk(&mut fork).find("bin/tool").expect("kept").data, b"TOOL");
    assert_eq!(
        walk(&mut fork).find("home/u/.bashrc").expect("read on").data,
        fs::read(host.at("home/u/.bashrc")).expect("there")
    );
    // When the run has ended, what it did not look at is only had as it was when it began.
    std::thread::sleep(Duration::from_millis(20));
    fs::write(host.at("home/u/work/main.c"), "int moin;").expect("write");
    image.hold();
    let error = walk(&mut image.clone()).find("home/u/work/main.c").map(|_| ()).expect_err("later");
    assert!(error.to_string().contains("main.c changed since"), "{error}");
    assert_eq!(walk(&mut image.clone()).find("etc/passwd").expect("as it was").data, b"root");
    // The next attempt looks anew.
    image.begin();
    assert_eq!(walk(&mut Kept::of(image)).find("bin/tool").expect("seen").data, b"tool");
}

#[test]
fn a_directory_that_changes_all_the_time_is_listed_in_one_version_or_refused() {
    let host = Host::new();
    fs::create_dir(host.at("home/u/work/busy")).expect("mkdir");
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (made, stopped) = (host.at("home/u/work/busy"), stop.clone());
    // Two names, of which there is always one more of the first.
    let writer = std::thread::spawn(move || {
        for n in 0.. {
            fs::write(made.join(format!("a{n:06}")), "").expect("write");
            fs::write(made.join(format!("b{n:06}")), "").expect("write");
            if stopped.load(std::sync::atomic::Ordering::Relaxed) {
                break;
            }
            std::thread::sleep(Duration::from_millis(3));
        }
    });
    for _ in 0..5 {
        let root = HostRoot::moving(&host.options("home/u/work")).expect("opens");
        match walk(&mut root.image()).find("home/u/work/busy") {
            Ok(found) => {
                let names = Walker::names(&found);
                let count = |letter| names.keys().filter(|name| name[0] == letter).count();
                assert!((0..=1).contains(&(count(b'a') - count(b'b'))));
            }
            Err(error) => assert!(error.to_string().contains("busy changed since"), "{error}"),
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().expect("wrote");
}

#[test]
fn data_read_after_the_inode_is_of_the_same_version() {
    let host = Host::new();
    fs::write(host.at("bin/tool"), vec![1; 20_000]).expect("write");
    let mut image = host.open().image();
    let mut walker = walk(&mut image);
    let directory = walker.find("bin").expect("found");
    let nid = Walker::names(&directory)[&b"tool"[..]];
    let inode = walker.bytes(nid * 32, 64).expect("read");
    let data = u64::from(u32::from_le_bytes(inode[16..20].try_into().expect("4")));
    assert_eq!(walker.bytes(data * 4096, 4096).expect("read"), [1; 4096]);
    std::thread::sleep(Duration::from_millis(20));
    fs::File::options()
        .write(true)
        .open(host.at("bin/tool"))
        .expect("open")
        .write_all_at(&[2; 20_000], 0)
        .expect("write");
    let error = walker.bytes((data + 1) * 4096, 4096).expect_err("changed");
    assert!(error.to_string().contains("bin/tool changed since"), "{error}");
}

#[test]
fn a_fork_of_a_stored_run_reads_on_where_nothing_changed() {
    let host = Host::new();
    let live = host.open().image();
    let mut first = Kept::of(live.clone());
    walk(&mut first).find("bin").expect("found");
    let origin = live.origin();
    let origin = postcard::from_bytes(&postcard::to_allocvec(&origin).expect("encodes")).expect("decodes");

    std::thread::sleep(Duration::from_millis(20));
    fs::write(host.at("etc/passwd"), "changed").expect("write");
    let root = HostRoot::resume(&host.options("home/u/work"), &origin).expect("opens");
    let used = first.blocks.len();
    let mut fork = Kept { live: Some(root.image()), ..first };
    let mut walker = walk(&mut fork);
    assert_eq!(walker.find("bin/tool").expect("new to the fork").data, b"tool");
    let error = walker.find("etc/passwd").map(|_| ()).expect_err("changed");
    assert!(error.to_string().contains("etc/passwd changed since"), "{error}");
    assert!(fork.blocks.len() > used);
}

#[test]
fn a_look_into_an_earlier_run_finds_unchanged_files_and_refuses_others() {
    let host = Host::new();
    let live = host.open().image();
    walk(&mut live.clone()).find("etc").expect("found");
    std::thread::sleep(Duration::from_millis(20));
    fs::write(host.at("bin/new"), "new").expect("write");
    fs::write(host.at("home/u/work/main.c"), "int moin;").expect("write");
    let root = HostRoot::resume_now(&host.options("home/u/work"), &live.origin()).expect("opens");
    let mut image = root.image();
    assert_eq!(walk(&mut image).find("bin/tool").expect("there").data, b"tool", "beside a new file");
    for changed in ["bin/new", "home/u/work/main.c"] {
        let error = walk(&mut image).find(changed).map(|_| ()).expect_err("changed");
        assert!(error.to_string().contains(&format!("{changed} changed since")), "{error}");
    }
    let blocks: Vec<u64> = {
        let mut walker = walk(&mut image);
        walker.find("bin/tool").expect("there");
        walker.read.iter().copied().collect()
    };
    assert_eq!(image.files_at(&mut blocks.into_iter()), [b"/bin/tool".to_vec()]);
}

#[test]
fn a_working_directory_in_tmp_and_one_that_is_hidden() {
    let host = Host::new();
    fs::create_dir_all(host.at("tmp/mine/here")).expect("mkdir");
    fs::write(host.at("tmp/mine/here/f"), "x").expect("write");
    fs::write(host.at("tmp/mine/beside"), "x").expect("write");
    let root = HostRoot::new(&host.options("tmp/mine/here")).expect("opens");
    let mut image = root.image();
    let found = walk(&mut image).all().expect("walked");
    let below: Vec<_> =
        found.keys().filter(|path| path.starts_with("./tmp")).map(|p| p.to_str().unwrap()).collect();
    assert_eq!(below, ["./tmp", "./tmp/mine", "./tmp/mine/here", "./tmp/mine/here/f"]);
    let tmp = walk(&mut image).find("tmp").expect("found");
    assert_eq!((tmp.mode, tmp.nlink, tmp.mtime), (0o041_777, 3, 315_532_800));
    let error = HostRoot::new(&host.options("home/u/.ssh")).map(|_| ()).expect_err("hidden");
    assert!(error.to_string().contains("holds secrets"), "{error}");
    let mut outside = host.options("tmp");
    outside.cwd = PathBuf::from("/elsewhere");
    assert!(HostRoot::new(&outside).map(|_| ()).unwrap_err().to_string().contains("is not below the root"));
}

#[test]
fn a_link_put_in_a_directorys_place_leads_nowhere() {
    let host = Host::new();
    let root = host.open();
    let mut image = root.image();
    walk(&mut image).find("bin").expect("found");
    fs::rename(host.at("bin"), host.at("bin.old")).expect("rename");
    symlink("/etc", host.at("bin")).expect("symlink");
    let error = walk(&mut image).find("bin/tool").map(|_| ()).expect_err("changed");
    assert!(error.to_string().contains("changed since"), "{error}");
}

#[test]
fn this_machines_own_root() {
    let cwd = fs::canonicalize(env!("CARGO_TARGET_TMPDIR")).expect("there");
    let options =
        RootOptions { top: PathBuf::from("/"), cwd, home: Some(PathBuf::from("/root")), hidden: Vec::new() };
    // Others may change it meanwhile.
    let mut image = HostRoot::moving(&options).expect("opens").image();
    let mut walker = walk(&mut image);
    let env = fs::canonicalize("/usr/bin/env").expect("there");
    assert!(walker.find(env.to_str().expect("plain")).expect("found").data == fs::read(&env).expect("read"));
    assert_eq!(walker.find("etc/passwd").expect("found").data, fs::read("/etc/passwd").expect("read"));
    let usr = walker.find("usr/bin").expect("found");
    let expected: BTreeSet<_> = fs::read_dir("/usr/bin")
        .expect("readdir")
        .map(|entry| entry.expect("entry").file_name().into_encoded_bytes())
        .chain([b".".to_vec(), b"..".to_vec()])
        .collect();
    assert_eq!(Walker::names(&usr).into_keys().collect::<BTreeSet<_>>(), expected);
    for empty in ["proc", "sys", "dev"] {
        assert_eq!(Walker::names(&walker.find(empty).expect("shown")).len(), 2, "{empty}");
    }
    assert!(walker.find("etc/shadow").is_err());
}
