//! An EROFS file given as a root: served as it is, refused with a reason when it is not whole.

use image::dir::DirOptions;
use image::open::SourceKind;
use image::{OpenOptions, Opened, open};
use std::fs;
use std::path::Path;
use std::process::Command;

fn open_in(cache: &Path, path: &Path) -> Result<Opened, String> {
    let options = OpenOptions { cache, directory: DirOptions::default(), progress: &|_| () };
    open(path, &options).map_err(|error| std::error::Error::source(&error).expect("a cause").to_string())
}

fn mkfs(options: &[&str], out: &Path, top: &Path) {
    let done = Command::new("mkfs.erofs").args(options).arg(out).arg(top).output().expect("mkfs.erofs runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn it_is_served_byte_for_byte_and_has_an_id_of_its_content() {
    let dir = tempfile::tempdir().expect("directory");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("top")).expect("mkdir");
    fs::write(at("top/file"), vec![3; 100_000]).expect("write");
    mkfs(&["-T0"], &at("a.erofs"), &at("top"));
    let opened = open_in(&at("cache"), &at("a.erofs")).expect("opens");
    assert_eq!(opened.kind, SourceKind::Erofs);
    let mut image = opened.image();
    let mut bytes = vec![0; image.len() as usize];
    image.read(0, &mut bytes).expect("read");
    let file = fs::read(at("a.erofs")).expect("read");
    assert_eq!(bytes[..file.len()], file);
    assert!(bytes[file.len()..].iter().all(|&byte| byte == 0));
    assert!(image.read(image.len() - 512, &mut [0; 1024]).is_err(), "past the end");

    fs::copy(at("a.erofs"), at("b.erofs")).expect("copy");
    assert_eq!(open_in(&at("cache"), &at("b.erofs")).expect("opens").id, opened.id);
    let mut other = file.clone();
    *other.last_mut().expect("not empty") ^= 1;
    fs::write(at("b.erofs"), other).expect("write");
    assert_ne!(open_in(&at("cache"), &at("b.erofs")).expect("opens").id, opened.id);

    std::thread::sleep(std::time::Duration::from_millis(20));
    fs::write(at("a.erofs"), &file).expect("write");
    assert!(image.read(0, &mut [0; 512]).unwrap_err().to_string().contains("a.erofs changed since"));
}

#[test]
fn what_a_mount_in_the_guest_would_refuse_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().expect("directory");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("top")).expect("mkdir");
    fs::write(at("top/file"), vec![3; 100_000]).expect("write");
    mkfs(&["-T0"], &at("a.erofs"), &at("top"));
    let good = fs::read(at("a.erofs")).expect("read");
    let refuse = |bytes: &[u8]| {
        fs::write(at("bad.erofs"), bytes).expect("write");
        open_in(&at("cache"), &at("bad.erofs")).map(|_| ()).expect_err("refused")
    };
    let damage = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[1024 + at] = byte;
        // Without the checksum feature, so that the damage is seen and not only that there is some.
        bytes[1024 + 8] &= !1;
        bytes
    };
    assert!(refuse(&good[..1100]).contains("truncated"));
    assert!(refuse(&good[..good.len() - 4096]).contains("truncated"));
    assert!(refuse(&damage(12, 13)).contains("block size"));
    assert!(refuse(&damage(39, 0xff)).contains("truncated"));
    assert!(refuse(&damage(43, 0xff)).contains("root directory lies outside"));
    assert!(refuse(&damage(83, 0x80)).contains("features"));
    assert!(refuse(&damage(86, 1)).contains("features"));
    let mut checksum = good.clone();
    checksum[1024 + 16] ^= 1;
    assert!(refuse(&checksum).contains("wrong checksum"));
    mkfs(&["-zlz4"], &at("packed.erofs"), &at("top"));
    assert!(
        open_in(&at("cache"), &at("packed.erofs")).map(|_| ()).expect_err("refused").contains("compression")
    );
}
