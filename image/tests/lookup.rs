//! Files of images found by their path, without a kernel.

use image::dir::DirOptions;
use image::lookup::{Lookup, LookupError};
use image::{BlockImage, OpenOptions, open};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// A tree with what a walk can meet: many names, links of every kind, sizes around a block.
fn tree(top: &Path) {
    fs::create_dir_all(top.join("usr/lib/deep")).expect("mkdir");
    for size in [0, 1, 100, 4095, 4096, 4097, 70_000] {
        fs::write(top.join(format!("usr/file-{size}")), vec![b'x'; size]).expect("write");
    }
    for number in 0..2000 {
        fs::write(top.join(format!("usr/lib/deep/a-rather-long-name-{number}")), number.to_string())
            .expect("write");
    }
    symlink("usr/lib", top.join("lib")).expect("link");
    symlink("/usr/file-4097", top.join("usr/lib/absolute")).expect("link");
    symlink("../../lib/absolute", top.join("usr/lib/deep/up")).expect("link");
    symlink("loop", top.join("loop")).expect("link");
}

fn looks(image: Box<dyn BlockImage>) {
    let mut lookup = Lookup::new(image).expect("an image");
    for size in [0, 1, 100, 4095, 4096, 4097, 70_000] {
        let path = format!("/usr/file-{size}");
        assert_eq!(lookup.file(path.as_bytes(), 1 << 20).expect("found"), vec![b'x'; size], "{path}");
    }
    for number in [0, 7, 999, 1999] {
        let path = format!("lib/deep/./a-rather-long-name-{number}");
        assert_eq!(lookup.file(path.as_bytes(), 10).expect("found"), number.to_string().into_bytes());
    }
    for path in ["/lib/absolute", "/lib/deep/up", "/lib/deep/../absolute", "/../../lib/absolute"] {
        assert_eq!(lookup.file(path.as_bytes(), 1 << 20).expect("found").len(), 4097, "{path}");
    }
    let fails = |lookup: &mut Lookup, path: &str, most| lookup.file(path.as_bytes(), most).unwrap_err();
    assert!(matches!(fails(&mut lookup, "/usr/none", 10), LookupError::Missing));
    assert!(matches!(fails(&mut lookup, "/usr/file-1/x", 10), LookupError::Missing));
    assert!(matches!(fails(&mut lookup, "/usr", 10), LookupError::NotAFile));
    assert!(matches!(fails(&mut lookup, "/loop", 10), LookupError::Links));
    assert!(matches!(fails(&mut lookup, "/usr/file-4097", 4096), LookupError::TooLarge(4097)));
}

#[test]
fn files_of_our_own_images_and_of_others_are_found() {
    let dir = tempfile::tempdir().expect("directory");
    let top = dir.path().join("top");
    tree(&top);
    let cache = dir.path().join("cache");
    let options = OpenOptions { cache: &cache, directory: DirOptions::default(), progress: &|_| () };
    looks(open(&top, &options).expect("opens").image());
    let made = dir.path().join("made.erofs");
    let done = Command::new("mkfs.erofs").arg(&made).arg(&top).output().expect("mkfs.erofs runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    looks(open(&made, &options).expect("opens").image());
}

/// A damaged image: an error or another file's bytes, never a panic and never more than was asked for.
#[test]
fn a_hostile_image_does_no_harm() {
    struct Bytes(Vec<u8>);
    impl BlockImage for Bytes {
        fn len(&self) -> u64 {
            self.0.len() as u64
        }
        fn read(&mut self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
            out.copy_from_slice(&self.0[offset as usize..][..out.len()]);
            Ok(())
        }
    }
    let dir = tempfile::tempdir().expect("directory");
    let top = dir.path().join("top");
    fs::create_dir_all(top.join("a/b")).expect("mkdir");
    fs::write(top.join("a/b/c"), b"content").expect("write");
    let cache = dir.path().join("cache");
    let options = OpenOptions { cache: &cache, directory: DirOptions::default(), progress: &|_| () };
    let mut image = open(&top, &options).expect("opens").image();
    let mut good = vec![0; image.len() as usize];
    image.read(0, &mut good).expect("read");
    for at in 1024..good.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            if good[at] != value && (at < 1152 || good[at] != 0 || at % 7 == 0) {
                let mut bad = good.clone();
                bad[at] = value;
                if let Ok(mut lookup) = Lookup::new(Box::new(Bytes(bad))) {
                    let found = lookup.file(b"/a/b/c", 1 << 16);
                    assert!(found.is_err() || found.is_ok_and(|bytes| bytes.len() <= 1 << 16));
                }
            }
        }
    }
}
