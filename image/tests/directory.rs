//! A directory packed, checked by erofs-utils, mounted by the host's kernel and compared file by file.

mod common;

use common::{Mounted, assert_same, fsck, look};
use image::dir::{DirOptions, read_dir};
use image::{TreeImage, write_image};
use proptest::strategy::Strategy;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

const KEEP: DirOptions = DirOptions { keep_owners: true, keep_times: true };

fn pack(top: &Path, options: DirOptions) -> tempfile::NamedTempFile {
    let (tree, _) = read_dir(top, options).expect("readable");
    let mut image = TreeImage::new(tree).expect("fits");
    let file = tempfile::NamedTempFile::new().expect("file");
    write_image(&mut image, file.as_file(), &mut |_| ()).expect("written");
    file
}

#[track_caller]
fn check(top: &Path) {
    let file = pack(top, KEEP);
    fsck(file.path());
    let mounted = Mounted::new(file.path());
    assert_same(&look(top), &look(mounted.at.path()));
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty()).expect(name);
}

#[test]
fn every_kind_of_file_comes_back_as_it_was() {
    let dir = tempfile::tempdir().expect("directory");
    let top = dir.path();
    let at = |name: &str| top.join(name);
    fs::write(at("empty"), "").expect("write");
    for size in [1, 511, 512, 4095, 4096, 4097, 70_000] {
        let data: Vec<u8> = (0..size).map(|n| (n % 251) as u8).collect();
        fs::write(at(&format!("size-{size}")), data).expect("write");
    }
    fs::set_permissions(at("size-1"), fs::Permissions::from_mode(0o4751)).expect("chmod");
    rustix::fs::chown(
        at("size-511"),
        Some(rustix::fs::Uid::from_raw(123_456)),
        Some(rustix::fs::Gid::from_raw(3_000_000_000)),
    )
    .expect("chown");
    fs::hard_link(at("size-4096"), at("linked")).expect("link");
    fs::create_dir(at("inner")).expect("mkdir");
    fs::hard_link(at("size-4096"), at("inner/linked-too")).expect("link");
    symlink("../nowhere", at("inner/short-link")).expect("symlink");
    for len in [100, 4000, 4032, 4033, 4095] {
        symlink("a/".repeat(2048).split_at(len).0, at(&format!("link-{len}"))).expect("symlink");
    }
    let odd: [&[u8]; 6] = [b"\xff\xfe", b" ", b"-rf", b"!before-dot", b"new\nline", &[b'x'; 255]];
    for name in odd {
        fs::write(top.join(OsStr::from_bytes(name)), name).expect("write");
    }
    fs::create_dir(at("empty-dir")).expect("mkdir");
    let node = |name: &str, kind, dev| {
        rustix::fs::mknodat(rustix::fs::CWD, at(name), kind, 0o640.into(), dev).expect("mknod");
    };
    node("fifo", rustix::fs::FileType::Fifo, 0);
    node("null", rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    node("disk", rustix::fs::FileType::BlockDevice, rustix::fs::makedev(259, 1_000_000));
    check(top);
}

#[test]
fn attributes_come_back_and_labels_of_the_host_do_not() {
    // Not in /tmp, which may be a tmpfs without user attributes.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory");
    let top = dir.path();
    fs::write(top.join("file"), "data").expect("write");
    set_xattr(&top.join("file"), "user.small", b"");
    set_xattr(&top.join("file"), "user.binary", &[0, 255, 10]);
    set_xattr(&top.join("file"), "user.big", &[7; 3500]);
    fs::create_dir(top.join("dir")).expect("mkdir");
    set_xattr(&top.join("dir"), "user.on-dir", b"yes");
    set_xattr(top, "user.on-top", b"yes");
    let capability = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    set_xattr(&top.join("file"), "security.capability", &capability);
    let acl = [
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 1, 0, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255,
        16, 0, 4, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255, 255,
    ];
    set_xattr(&top.join("file"), "system.posix_acl_access", &acl);
    check(top);

    set_xattr(&top.join("file"), "trusted.host", b"only here");
    let file = pack(top, KEEP);
    let mounted = Mounted::new(file.path());
    let seen = look(mounted.at.path());
    let names: Vec<_> = seen[Path::new("file")].xattrs.keys().map(|n| String::from_utf8_lossy(n)).collect();
    assert_eq!(
        names,
        ["security.capability", "system.posix_acl_access", "user.big", "user.binary", "user.small"]
    );
}

#[test]
fn large_and_sparse_files_are_read_to_the_last_byte() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("sparse");
    let file = File::create(&path).expect("create");
    // Over 4 GiB, data at both ends and across the 4 GiB line.
    file.set_len((5 << 30) + 123).expect("truncate");
    file.write_all_at(b"begin", 0).expect("write");
    file.write_all_at(&[9; 8192], (4 << 30) - 4096).expect("write");
    file.write_all_at(b"end", (5 << 30) + 120).expect("write");
    fs::write(dir.path().join("zzz-behind"), "behind the large one").expect("write");
    let packed = pack(dir.path(), KEEP);
    fsck(packed.path());
    let blocks = std::os::unix::fs::MetadataExt::blocks(&packed.as_file().metadata().expect("stat"));
    assert!(blocks * 512 < 1 << 20, "holes stay holes: {blocks} sectors");
    let mounted = Mounted::new(packed.path());
    let read = |at: u64, len: usize| {
        let mut out = vec![1; len];
        File::open(mounted.at.path().join("sparse"))
            .expect("open")
            .read_exact_at(&mut out, at)
            .expect("read");
        out
    };
    assert_eq!(read(0, 6), b"begin\0");
    assert_eq!(read((4 << 30) - 4097, 8194), [&[0][..], &[9; 8192], &[0]].concat());
    assert_eq!(read((5 << 30) + 119, 4), b"\0end");
    assert_eq!(fs::read(mounted.at.path().join("zzz-behind")).expect("read"), b"behind the large one");
}

#[test]
fn wide_and_deep_trees() {
    let dir = tempfile::tempdir().expect("directory");
    let wide = dir.path().join("wide");
    fs::create_dir(&wide).expect("mkdir");
    for n in 0..3000 {
        fs::write(wide.join(format!("{n:x}-{}", "n".repeat(n % 200))), n.to_string()).expect("write");
    }
    let mut deep = dir.path().join("deep");
    for n in 0..300 {
        fs::create_dir(&deep).expect("mkdir");
        fs::write(deep.join("f"), n.to_string()).expect("write");
        deep.push("d");
    }
    check(dir.path());
}

#[test]
fn owners_and_times_of_the_host_do_not_matter_unless_asked() {
    let make = || {
        let dir = tempfile::tempdir().expect("directory");
        fs::create_dir(dir.path().join("d")).expect("mkdir");
        dir
    };
    let (one, two) = (make(), make());
    for (dir, order) in [(&one, ["b", "a"]), (&two, ["a", "b"])] {
        for name in order {
            fs::write(dir.path().join("d").join(name), name).expect("write");
        }
        fs::hard_link(dir.path().join("d/b"), dir.path().join("c")).expect("link");
    }
    rustix::fs::chown(two.path().join("d/a"), Some(rustix::fs::Uid::from_raw(1000)), None).expect("chown");
    let options = DirOptions::default();
    let bytes = |dir: &tempfile::TempDir, options| fs::read(pack(dir.path(), options).path()).expect("read");
    assert!(bytes(&one, options) == bytes(&two, options));
    assert!(bytes(&one, KEEP) != bytes(&two, KEEP));
}

#[test]
fn sockets_are_left_out_and_said() {
    let dir = tempfile::tempdir().expect("directory");
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).expect("bind");
    let (_, left_out) = read_dir(dir.path(), KEEP).expect("readable");
    assert_eq!(left_out.len(), 1);
    assert_eq!((&left_out[0].path[..], left_out[0].what), (&b"socket"[..], "socket"));
}

#[test]
fn a_file_that_changes_under_us_is_named_and_never_mixed() {
    use image::BlockImage;
    let dir = tempfile::tempdir().expect("directory");
    fs::write(dir.path().join("a"), vec![1; 100_000]).expect("write");
    let open = || TreeImage::new(read_dir(dir.path(), KEEP).expect("readable").0).expect("fits");
    let read = |image: &mut TreeImage, block: u64| {
        let mut out = vec![0; 4096];
        image.read(image.len() - 25 * 4096 + block * 4096, &mut out).map(|()| out)
    };
    let mut image = open();
    assert_eq!(read(&mut image, 0).expect("unchanged"), vec![1; 4096]);
    type Change = (&'static str, fn(&Path));
    let changes: [Change; 5] = [
        ("emptied", |path| File::options().write(true).open(path).unwrap().set_len(0).unwrap()),
        ("written", |path| {
            File::options().write(true).open(path).unwrap().write_all_at(&[2], 50_000).unwrap()
        }),
        ("truncated", |path| File::options().write(true).open(path).unwrap().set_len(10).unwrap()),
        ("replaced", |path| {
            fs::write(path.with_extension("new"), vec![1; 100_000]).unwrap();
            fs::rename(path.with_extension("new"), path).unwrap();
        }),
        ("a link", |path| {
            fs::rename(path, path.with_extension("old")).unwrap();
            symlink("a.old", path).unwrap();
        }),
    ];
    for (what, change) in changes {
        let mut image = open();
        std::thread::sleep(std::time::Duration::from_millis(20));
        change(&dir.path().join("a"));
        let error = read(&mut image, 3).expect_err(what).to_string();
        assert!(error.contains("/a changed since"), "{what}: {error}");
        // Nothing in an empty one is a hole of the one that is wanted.
        let file = tempfile::NamedTempFile::new().expect("file");
        let error = write_image(&mut image, file.as_file(), &mut |_| ()).expect_err(what).to_string();
        assert!(error.contains("/a changed since"), "{what}: {error}");
        fs::remove_file(dir.path().join("a")).expect("remove");
        fs::write(dir.path().join("a"), vec![1; 100_000]).expect("write");
    }
}

/// What a random tree is made of.
#[derive(Clone, Debug)]
enum Made {
    File(usize, u16),
    Directory(u16),
    Link(String),
    /// Another name of the n-th file so far.
    Again(usize),
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]

    #[test]
    fn random_trees_come_back(
        parts in proptest::collection::vec((
            proptest::prelude::any::<proptest::sample::Index>(),
            proptest::collection::vec(proptest::prelude::prop_oneof![1..47u8, 48..=255u8], 1..256),
            proptest::prelude::prop_oneof![
                (0..20_000usize, 0..0o10_000u16).prop_map(|(size, mode)| Made::File(size, mode)),
                (0..0o10_000u16).prop_map(Made::Directory),
                "[a-z/.]{1,200}".prop_map(Made::Link),
                (0..50usize).prop_map(Made::Again),
            ],
        ), 0..60)
    ) {
        let dir = tempfile::tempdir().expect("directory");
        let (mut directories, mut files) = (vec![dir.path().to_owned()], Vec::new());
        for (parent, name, made) in parts {
            let path = parent.get(&directories).join(OsStr::from_bytes(&name));
            if name == b"." || name == b".." || fs::symlink_metadata(&path).is_ok() {
                continue;
            }
            match made {
                Made::File(size, mode) => {
                    fs::write(&path, vec![size as u8; size]).expect("write");
                    fs::set_permissions(&path, fs::Permissions::from_mode(mode.into())).expect("chmod");
                    files.push(path);
                }
                Made::Directory(mode) => {
                    fs::create_dir(&path).expect("mkdir");
                    fs::set_permissions(&path, fs::Permissions::from_mode(mode.into())).expect("chmod");
                    directories.push(path);
                }
                Made::Link(target) => symlink(target, &path).expect("symlink"),
                Made::Again(n) if !files.is_empty() => fs::hard_link(&files[n % files.len()], &path).expect("link"),
                Made::Again(_) => {}
            }
        }
        check(dir.path());
    }
}
