//! Tars of every kind: made by GNU tar and compared with what it unpacks, layers of containers, and hostile ones made
//! by hand.

mod common;

use common::{Mounted, Seen, assert_same, fsck, look};
use image::dir::DirOptions;
use image::open::SourceKind;
use image::{OpenOptions, Opened, open};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A place for a test's files, with attributes on every host.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("directory") }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(name);
        fs::create_dir_all(path.parent().expect("inside")).expect("mkdir");
        fs::write(&path, bytes).expect("write");
        path
    }

    fn open(&self, path: &Path) -> Result<Opened, String> {
        let options =
            OpenOptions { cache: &self.at("cache"), directory: DirOptions::default(), progress: &|_| () };
        open(path, &options).map_err(|error| chain(&error))
    }

    /// Everything in the image of `path`, as the kernel shows it.
    fn see(&self, path: &Path) -> BTreeMap<PathBuf, Seen> {
        let opened = self.open(path).expect("opens");
        let file = tempfile::NamedTempFile::new_in(self.dir.path()).expect("file");
        opened.write_to(file.as_file(), &mut |_| ()).expect("written");
        fsck(file.path());
        look(Mounted::new(file.path()).at.path())
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

#[track_caller]
fn run(command: &mut Command) {
    let out = command.output().expect("runs");
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
}

fn tar(directory: &Path, file: &Path, options: &[&str]) {
    run(Command::new("tar").args(options).arg("-cf").arg(file).arg("-C").arg(directory).arg("."));
}

fn sample(top: &Path) {
    let at = |name: &str| top.join(name);
    fs::create_dir_all(at("usr/bin")).expect("mkdir");
    fs::write(at("usr/bin/tool"), vec![5; 10_000]).expect("write");
    fs::set_permissions(at("usr/bin/tool"), fs::Permissions::from_mode(0o4755)).expect("chmod");
    fs::hard_link(at("usr/bin/tool"), at("usr/bin/same")).expect("link");
    symlink("usr/bin", at("bin")).expect("symlink");
    let long = format!("{}/{}", "d".repeat(120), "n".repeat(200));
    fs::create_dir(at(&"d".repeat(120))).expect("mkdir");
    fs::write(at(&long), "long").expect("write");
    symlink("t".repeat(300), at("long-target")).expect("symlink");
    fs::write(at("owned"), "x").expect("write");
    rustix::fs::chown(at("owned"), Some(rustix::fs::Uid::from_raw(3_000_000_000)), None).expect("chown");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at("null"),
        rustix::fs::FileType::CharacterDevice,
        0o666.into(),
        rustix::fs::makedev(1, 3),
    )
    .expect("mknod");
    rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .expect("mkfifo");
    rustix::fs::lsetxattr(at("owned"), "user.note", b"\0\n=", rustix::fs::XattrFlags::empty())
        .expect("xattr");
    // The second name needs a pax record of its own, which comes after the record of the sparse file's name.
    for name in ["sparse", "d\u{fc}nn"] {
        let sparse = fs::File::create(at(name)).expect("create");
        sparse.set_len(3 << 20).expect("truncate");
        for n in 0..40 {
            std::os::unix::fs::FileExt::write_all_at(&sparse, &[n + 1; 5000], u64::from(n) * 70_000)
                .expect("write");
        }
    }
}

#[test]
fn what_gnu_tar_packs_is_what_it_unpacks() {
    let place = Place::new();
    let top = place.at("top");
    fs::create_dir(&top).expect("mkdir");
    sample(&top);
    let formats: [&[&str]; 6] = [
        &["--format=pax", "--xattrs", "--xattrs-include=*"],
        &["--format=pax", "-S"],
        &["--format=pax", "-S", "--sparse-version=0.1"],
        &["--format=gnu", "-S"],
        &["--format=gnu"],
        &["--format=oldgnu"],
    ];
    for (n, options) in formats.into_iter().enumerate() {
        let file = place.at(&format!("{n}.tar"));
        tar(&top, &file, options);
        let unpacked = place.at(&format!("unpacked-{n}"));
        fs::create_dir(&unpacked).expect("mkdir");
        let mut command = Command::new("tar");
        command.args(["-xpf"]).arg(&file).arg("-C").arg(&unpacked);
        if n == 0 {
            command.args(["--xattrs", "--xattrs-include=*"]);
        }
        run(&mut command);
        assert_same(&look(&unpacked), &place.see(&file));
    }
}

#[test]
fn a_compressed_tar_is_the_same_root() {
    let place = Place::new();
    let top = place.at("top");
    fs::create_dir(&top).expect("mkdir");
    sample(&top);
    tar(&top, &place.at("a.tar"), &["--format=pax"]);
    let bytes = fs::read(place.at("a.tar")).expect("read");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &bytes).expect("gzip");
    place.write("a.tgz", gzip.finish().expect("gzip"));
    place.write("a.zst", zstd::encode_all(&bytes[..], 1).expect("zstd"));
    let id = |name| place.open(&place.at(name)).expect("opens").id;
    assert_eq!(id("a.tar"), id("a.tgz"));
    assert_eq!(id("a.tar"), id("a.zst"));
    place.write("cut.tgz", &fs::read(place.at("a.tgz")).expect("read")[..400]);
    assert!(place.open(&place.at("cut.tgz")).is_err());
    assert_eq!(
        fs::read_dir(place.at("cache/unpacked")).expect("readdir").count(),
        2,
        "nothing is left of the failure"
    );
}

/// One entry of a tar made by hand: type, path, link target, data.
fn entry(kind: u8, path: &str, link: &str, data: &[u8]) -> Vec<u8> {
    entry_of_size(kind, path, link, &format!("{:011o}", data.len()), data)
}

fn entry_of_size(kind: u8, path: &str, link: &str, size: &str, data: &[u8]) -> Vec<u8> {
    let mut header = [0u8; 512];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    put(0, path.as_bytes());
    put(100, b"0000755\x000000000\x000000000\x00");
    put(124, size.as_bytes());
    put(136, b"00000000001\0        ");
    put(156, &[kind]);
    put(157, link.as_bytes());
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let padding = data.len().next_multiple_of(512) - data.len();
    [&header[..], data, &vec![0; padding]].concat()
}

/// A pax record of two-digit length.
fn record(text: &str) -> String {
    format!("{} {text}\n", text.len() + 4)
}

fn directory(path: &str) -> Vec<u8> {
    entry(b'5', path, "", b"")
}

fn file(path: &str, data: &str) -> Vec<u8> {
    entry(b'0', path, "", data.as_bytes())
}

fn names(seen: &BTreeMap<PathBuf, Seen>) -> Vec<&str> {
    seen.keys().map(|path| path.to_str().expect("plain names")).collect()
}

#[test]
fn later_entries_win_and_links_stay_inside() {
    let place = Place::new();
    let entries = [
        file("a", "first"),
        entry(b'1', "b", "a", b""),
        file("a", "second"),
        file("/absolute", "from the root"),
        directory("usr/lib"),
        entry(b'2', "lib", "/usr/lib", b""),
        file("lib/through-link", "x"),
        entry(b'2', "up", "../../..", b""),
        file("up/at-top", "x"),
        file("dir", "becomes a directory"),
        directory("dir"),
        file("dir/in", "x"),
        directory("./"),
        file("./deep/er/file", "x"),
        entry(b'5', "dir/", "", b""),
    ];
    let path = place.write("a.tar", entries.concat());
    let seen = place.see(&path);
    assert_eq!(
        names(&seen),
        [
            ".",
            "a",
            "absolute",
            "at-top",
            "b",
            "deep",
            "deep/er",
            "deep/er/file",
            "dir",
            "dir/in",
            "lib",
            "up",
            "usr",
            "usr/lib",
            "usr/lib/through-link"
        ]
    );
    assert_eq!((seen[Path::new("a")].size, seen[Path::new("b")].size), (6, 5), "b is the first a");
    assert_eq!(seen[Path::new("b")].nlink, 1);
    assert_eq!(seen[Path::new(".")].mtime.0, 1);
    assert_eq!(seen[Path::new("deep")].mtime.0, 315_532_800, "not in the tar");
}

#[test]
fn hostile_tars_are_refused_by_name() {
    let place = Place::new();
    let pax = |records: &[&str]| entry(b'x', "pax", "", records.concat().as_bytes());
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("upwards", file("a/../../etc/passwd", "x"), "`a/../../etc/passwd`: its path has a `..`"),
        ("link upwards", entry(b'1', "l", "../x", b""), "`l`: its path has a `..`"),
        (
            "link to nothing",
            entry(b'1', "l", "gone", b""),
            "`l`: it is a hard link to `gone`, which is not in",
        ),
        ("link to directory", [directory("d"), entry(b'1', "l", "d", b"")].concat(), "or is a directory"),
        ("link to itself", entry(b'1', "l", "l", b""), "it is a hard link to `l`"),
        (
            "links in a circle",
            [entry(b'2', "x", "y", b""), entry(b'2', "y", "x", b""), file("x/f", "")].concat(),
            "`x/f`: its path leads through",
        ),
        ("below a file", [file("f", ""), file("f/g", "")].concat(), "`f/g`: its path leads through"),
        ("cut in data", file("f", &"x".repeat(2000))[..1500].to_vec(), "`f`: the tar ends inside"),
        ("cut in header", [file("f", ""), vec![1; 100]].concat(), "the tar ends inside"),
        ("huge size", entry_of_size(b'0', "f", "", "77777777777", b""), "`f`: the tar ends inside"),
        (
            "negative size",
            entry_of_size(b'0', "f", "", "\u{7f}", b"").to_vec(),
            "the field `size` of its header is not a number",
        ),
        (
            "size over all",
            [pax(&[&record("size=18446744073709551615")]), file("f", "")].concat(),
            "ends inside it",
        ),
        ("long name", entry(b'L', "", "", &[b'n'; 5000]), "too long"),
        ("long component", [entry(b'L', "", "", &[b'n'; 300]), file("f", "")].concat(), "a name is empty, "),
        ("huge pax", entry_of_size(b'x', "", "", "77777777777", b""), "too long"),
        ("bad pax", [pax(&["99 path=a\n"]), file("f", "")].concat(), "its pax header is damaged"),
        ("unknown type", entry(b'M', "f", "", b""), "its type `M` is not known"),
        ("root as a file", [file("a", ""), file("./", "")].concat(), ""),
        (
            "root as a link",
            [file("a", ""), entry(b'2', ".", "x", b"")].concat(),
            "replaces the root directory",
        ),
        ("empty target", entry(b'2', "l", "", b""), "symbolic link's target is empty"),
        (
            "sparse map past the end",
            [pax(&[&record("GNU.sparse.size=10"), &record("GNU.sparse.map=5,6")]), file("f", "1234567")]
                .concat(),
            "sparse map is damaged",
        ),
        (
            "huge sparse file",
            [
                pax(&[&record("GNU.sparse.size=9000000000000000000"), &record("GNU.sparse.map=0,1")]),
                file("f", "1"),
            ]
            .concat(),
            "larger than 16 TiB",
        ),
        ("empty", vec![0; 1024], "no files in it"),
        ("text", vec![b'x'; 3000], "neither a directory, nor a tar"),
        ("nothing", Vec::new(), "no files in it"),
        ("a text", b"int main(void) { return 0; }\n".to_vec(), "neither a directory, nor a tar"),
    ];
    for (what, bytes, expected) in cases {
        let path = place.write("hostile.tar", bytes);
        match place.open(&path) {
            Err(error) => {
                assert!(error.contains(expected) && error.contains("hostile.tar"), "{what}: {error}")
            }
            Ok(_) => assert!(expected.is_empty(), "{what} was taken"),
        }
    }
}

#[test]
fn damage_anywhere_is_refused_or_read_but_never_a_panic() {
    let place = Place::new();
    let top = place.at("top");
    fs::create_dir(&top).expect("mkdir");
    fs::write(top.join("a"), "some text").expect("write");
    symlink("t".repeat(150), top.join("link")).expect("symlink");
    let sparse = fs::File::create(top.join("s")).expect("create");
    sparse.set_len(100_000).expect("truncate");
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"x", 60_000).expect("write");
    for options in [["--format=pax", "-S"], ["--format=gnu", "-S"]] {
        tar(&top, &place.at("good.tar"), &options);
        let good = fs::read(place.at("good.tar")).expect("read");
        let mut refused = 0;
        for at in (0..good.len().min(6000)).step_by(11) {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << (at % 8);
            if at % 3 == 0 {
                // A right checksum lets the damage past the first check.
                let header = at / 512 * 512;
                bytes[header + 148..header + 156].fill(b' ');
                let sum: u32 = bytes[header..header + 512].iter().map(|&byte| u32::from(byte)).sum();
                bytes[header + 148..header + 155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
            }
            refused += usize::from(place.open(&place.write("bad.tar", &bytes)).is_err());
        }
        assert!(refused > 100, "{refused}");
    }
}

#[test]
fn layers_of_a_saved_container_image() {
    let place = Place::new();
    let lower = [
        directory("etc"),
        file("etc/keep", "x"),
        file("etc/gone", "x"),
        directory("opaque"),
        file("opaque/old", "x"),
        directory("tree/sub"),
        file("tree/sub/f", "x"),
        file("replaced", "lower"),
    ]
    .concat();
    let upper = [
        file("opaque/new", "x"),
        // The whiteout stands behind what the same layer adds, and must not remove it.
        file("opaque/.wh..wh..opq", ""),
        file("etc/.wh.gone", ""),
        file(".wh.tree", ""),
        file("tree/fresh", "x"),
        file("replaced", "upper layer"),
        file("not/there/.wh.x", ""),
        file(".wh..wh.plnk", ""),
    ]
    .concat();
    let manifest = r#"[{"Config":"c.json","RepoTags":["t:1"],"Layers":["l1/layer.tar","l2/layer.tar"]}]"#;
    let save = |lower: &[u8], upper: &[u8]| {
        [
            entry(b'0', "l1/layer.tar", "", lower),
            entry(b'0', "other/layer.tar", "", upper),
            entry(b'2', "l2/layer.tar", "../other/layer.tar", b""),
            file("c.json", "{}"),
            file("manifest.json", manifest),
        ]
        .concat()
    };
    let path = place.write("saved.tar", save(&lower, &upper));
    let opened = place.open(&path).expect("opens");
    assert_eq!(opened.kind, SourceKind::Layers);
    let seen = place.see(&path);
    assert_eq!(
        names(&seen),
        [
            ".",
            "etc",
            "etc/keep",
            "not",
            "not/there",
            "opaque",
            "opaque/new",
            "replaced",
            "tree",
            "tree/fresh"
        ]
        .into_iter()
        .filter(|name| !name.starts_with("not"))
        .collect::<Vec<_>>()
    );
    assert_eq!(seen[Path::new("replaced")].size, 11);

    let packed = place.write(
        "packed.tar",
        save(
            &zstd::encode_all(&lower[..], 1).expect("zstd"),
            &zstd::encode_all(&upper[..], 1).expect("zstd"),
        ),
    );
    assert_eq!(place.open(&packed).expect("opens").id, opened.id);

    let oci = place.at("oci");
    let write = |name: &str, bytes: &[u8]| place.write(&format!("oci/{name}"), bytes);
    write("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#);
    write(
        "index.json",
        br#"{"manifests":[{"digest":"sha256:arm","platform":{"architecture":"arm64","os":"linux"}},
            {"digest":"sha256:amd","platform":{"architecture":"amd64","os":"linux"}}]}"#,
    );
    write("blobs/sha256/amd", br#"{"layers":[{"digest":"sha256:one"},{"digest":"sha256:two"}]}"#);
    write("blobs/sha256/one", &lower);
    write("blobs/sha256/two", &zstd::encode_all(&upper[..], 1).expect("zstd"));
    let layout = place.open(&oci).expect("opens");
    assert_eq!((layout.kind, layout.id), (SourceKind::Layers, opened.id));

    fs::remove_file(oci.join("blobs/sha256/two")).expect("remove");
    assert!(place.open(&oci).unwrap_err().contains("the layer `blobs/sha256/two` is not in it"));
    let tricks =
        [("etc/.wh...", "a name is empty"), ("../.wh.x", "its path has a `..`"), (".wh.", "a name is empty")];
    for (whiteout, expected) in tricks {
        let bad = place.write("bad.tar", save(&lower, &file(whiteout, "")));
        let error = place.open(&bad).unwrap_err();
        assert!(error.contains(expected), "{whiteout}: {error}");
    }
}

#[test]
fn a_root_that_has_a_file_called_manifest_is_a_root() {
    let place = Place::new();
    let path = place.write("a.tar", [file("manifest.json", "{}"), file("x", "x")].concat());
    assert_eq!(place.open(&path).expect("opens").kind, SourceKind::Tar);
    let manifest = r#"[{"Config":"c.json","Layers":[]},{"Config":"c.json","Layers":[]}]"#;
    let path = place.write("b.tar", [file("manifest.json", manifest), file("c.json", "{}")].concat());
    assert!(place.open(&path).unwrap_err().contains("it holds 2 images"));
}
