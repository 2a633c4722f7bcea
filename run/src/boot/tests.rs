use super::*;
use crate::{spec::tests::sample, store::PageHash, testing::Scratch};

/// The built guest; without one there is nothing to boot here, and the command's tests do.
fn guest() -> Option<KernelFiles> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../build/guest");
    KernelFiles::read(&built.join("vmlinux"), &built.join("initramfs.cpio")).ok()
}

fn file_in(dir: &Path) -> PathBuf {
    dir.join(keyframe::file_name(keyframe::list(dir)[0]))
}

#[test]
fn one_that_cannot_be_used_is_made_again_the_same() {
    let Some(files) = guest() else {
        println!("skipped: build/guest is not built");
        return;
    };
    let dir = Scratch::new("boot");
    let home = Home::open(dir.path()).unwrap();
    let kernel = Kernel::new(files);
    let mut spec = sample();
    (spec.kernel, spec.initramfs, spec.memory) = (kernel.kernel, kernel.initramfs, 64 << 20);
    spec.platform = PLATFORM_VERSION;
    spec.command_line.clone_from(&kernel.command_line);
    let engine = EngineKind::Soft;
    let ensured = || {
        let said = std::cell::RefCell::new(Vec::new());
        let boot = ensure(&home, &spec, engine, &|| Ok(kernel.clone()), &|text| {
            said.borrow_mut().push(text.to_owned())
        });
        (boot.unwrap(), said.into_inner().join("\n"))
    };
    let (boot, said) = ensured();
    assert!(said.contains("later runs start from there"), "{said}");
    assert!(ensured().1.is_empty());
    let at = home.boot_dir(boot.key);
    let good = std::fs::read(file_in(&at)).unwrap();
    let same = |says: &str| {
        assert!(open(&home, boot.key).unwrap().is_none(), "{says}");
        let (again, said) = ensured();
        assert!(said.contains(says), "{said}");
        assert!(std::fs::read(file_in(&at)).unwrap() == good && again.whole.pages == boot.whole.pages);
        assert!(ensured().1.is_empty());
        let left: Vec<_> = std::fs::read_dir(at.parent().unwrap()).unwrap().flatten().collect();
        assert_eq!(left.len(), 2, "the lock and the keyframe: {left:?}");
    };
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    std::fs::write(file_in(&at), bad).unwrap();
    same("is damaged: its checksum does not match");
    std::fs::remove_file(file_in(&at)).unwrap();
    same("later runs start from there");
    std::fs::remove_file(at.join("trace")).unwrap();
    same("cannot read");
    let lost: PageHash = *boot.whole.pages.values().next().unwrap();
    home.pages().compact(&|hash| hash != lost, false).unwrap();
    if boot.raw.is_none() {
        same("is not in the page store");
        assert!(unusable(&home, boot.key).unwrap().is_none());
    }
}
