//! Where the guest kernel and its initramfs are.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rewind_platform::PLATFORM_VERSION;
use run::{boot::Kernel, home::Home, spec::Content};

/// Finds both files: in `$REWIND_GUEST`, beside an installed command, or in the checkout's `build/guest`. They are
/// hashed if they changed since they were used last, and kept in the home.
pub(crate) fn kernel(home: &Home) -> Result<Kernel> {
    let dir = found()?;
    let paths = [dir.join(KERNEL), dir.join(INITRAMFS)];
    let hash = |path: &Path| {
        let digest = image::file_digest(&home.cache("images"), path);
        let (hash, len) = digest.with_context(|| format!("cannot read {}", path.display()))?;
        Ok::<_, anyhow::Error>((Content(hash), len))
    };
    let hashes = [hash(&paths[0])?, hash(&paths[1])?];
    let mut kernel = Kernel::at(paths, hashes);
    if let Some(options) = options(&dir)? {
        kernel.command_line.push(' ');
        kernel.command_line.push_str(&options);
    }
    kernel.keep(home)?;
    Ok(kernel)
}

const KERNEL: &str = "vmlinux";
const INITRAMFS: &str = "initramfs.cpio";

/// The folder with both files. A kernel whose `kernel.json` names another platform version is refused.
pub(crate) fn found() -> Result<PathBuf> {
    let mut tried = Vec::new();
    for dir in candidates() {
        if dir.join(KERNEL).is_file() && dir.join(INITRAMFS).is_file() {
            check_version(&dir)?;
            return Ok(dir);
        }
        tried.push(dir.display().to_string());
    }
    bail!(
        "no guest kernel (vmlinux and initramfs.cpio) in {}: run `make build`, or set REWIND_GUEST",
        tried.join(", ")
    )
}

/// What `kernel.json` says of the kernel: its platform version and, where a folder was made to boot it in another way than
/// usual, `options` that come after those of its command line.
fn facts(dir: &Path) -> Result<Option<serde_json::Value>> {
    let path = dir.join("kernel.json");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))
}

fn options(dir: &Path) -> Result<Option<String>> {
    match facts(dir)?.and_then(|facts| facts.get("options").cloned()) {
        None => Ok(None),
        Some(serde_json::Value::String(options)) => Ok(Some(options)),
        Some(other) => bail!("{}: options are a text, not {other}", dir.join("kernel.json").display()),
    }
}

/// Without the file, the machine itself finds out when the kernel boots.
fn check_version(dir: &Path) -> Result<()> {
    let Some(facts) = facts(dir)? else { return Ok(()) };
    let platform = facts["platform"].as_u64();
    if platform != Some(PLATFORM_VERSION.into()) {
        let found = platform.map_or("none".to_owned(), |version| version.to_string());
        bail!(
            "the guest kernel in {} implements platform version {found}, this program version {PLATFORM_VERSION}: \
             rebuild both with `make build`",
            dir.display()
        );
    }
    Ok(())
}

fn candidates() -> Vec<PathBuf> {
    if let Some(dir) = std::env::var_os("REWIND_GUEST").filter(|dir| !dir.is_empty()) {
        return vec![dir.into()];
    }
    let exe = std::env::current_exe().context("where is this program?").ok();
    let bin = exe.as_deref().and_then(std::path::Path::parent);
    let mut dirs: Vec<PathBuf> = bin.map(|bin| bin.join("../lib/rewind")).into_iter().collect();
    dirs.extend(bin.map(|bin| bin.join("../../build/guest")));
    dirs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_kernel_is_read_and_one_of_another_platform_refused() {
        let dir = std::env::temp_dir().join(format!("rewind-guest-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let with = |text: String| {
            std::fs::write(dir.join("kernel.json"), text).unwrap();
            check_version(&dir).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(with(format!("{{\"platform\": {PLATFORM_VERSION}}}")), Ok(()));
        let other = with(format!("{{\"platform\": {}}}", PLATFORM_VERSION + 1)).unwrap_err();
        assert!(other.contains(&format!("platform version {}", PLATFORM_VERSION + 1)), "{other}");
        assert!(other.contains("make build"), "{other}");
        assert!(with("{}".into()).unwrap_err().contains("version none"));
        assert!(with("{\"platform\"".into()).unwrap_err().contains("is damaged"));
        assert_eq!(options(&dir).map_err(|_| ()), Err(()));
        std::fs::write(dir.join("kernel.json"), "{}").unwrap();
        assert_eq!(options(&dir).unwrap(), None);
        std::fs::write(dir.join("kernel.json"), "{\"options\": \"a b\"}").unwrap();
        assert_eq!(options(&dir).unwrap().as_deref(), Some("a b"));
        std::fs::write(dir.join("kernel.json"), "{\"options\": 1}").unwrap();
        assert!(options(&dir).unwrap_err().to_string().contains("options are a text, not 1"));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
