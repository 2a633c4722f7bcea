//! The self-test's result is kept per boot of the host and identity of its KVM: it is run once, not for every
//! command.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

use serde::{Deserialize, Serialize};

use super::{Report, run};

const FILE: &str = "kvm-self-test";
/// Counts changes of the checks or of the engine they test.
const VERSION: u32 = 2;

#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Key {
    version: u32,
    boot: String,
    kernel: String,
    device: u64,
}

fn key() -> io::Result<Key> {
    let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned());
    Ok(Key {
        version: VERSION,
        boot: read("/proc/sys/kernel/random/boot_id")?,
        kernel: read("/proc/sys/kernel/osrelease")?,
        device: fs::metadata("/dev/kvm")?.rdev(),
    })
}

/// The result kept in `folder` if it is for this boot, else a new one, which is kept if the folder can be written.
pub fn remembered(folder: &Path) -> Report {
    let path = folder.join(FILE);
    let Ok(key) = key() else { return run() };
    if let Ok(bytes) = fs::read(&path)
        && let Ok((kept, report)) = postcard::from_bytes::<(Key, Report)>(&bytes)
        && kept == key
    {
        return report;
    }
    let report = run();
    // Whether this user may open the device can change at any time: only what was tested behind it is kept.
    if report.lines.len() > 1
        && let Ok(bytes) = postcard::to_allocvec(&(&key, &report))
    {
        let temporary = folder.join(format!("{FILE}.{}", std::process::id()));
        let kept = fs::create_dir_all(folder)
            .and_then(|()| fs::write(&temporary, bytes))
            .and_then(|()| fs::rename(&temporary, &path));
        if kept.is_err() {
            // Not kept: the next command tests again.
            let _ = fs::remove_file(&temporary);
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_or_foreign_file_is_replaced() {
        let folder = std::env::temp_dir().join(format!("rewind-self-test-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(FILE), [0xff; 40]).unwrap();
        let first = remembered(&folder);
        assert!(!first.lines.is_empty());
        let second = remembered(&folder);
        assert_eq!(first.refused().map(|line| &line.name), second.refused().map(|line| &line.name));
        fs::remove_dir_all(&folder).unwrap();
    }
}
