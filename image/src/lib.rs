//! Root images: what `--root` can be, and the host's own root, as a read-only block image for the machine.
//!
//! A directory or tar becomes a [`tree::Tree`]; a tree is laid out as an uncompressed EROFS image whose metadata is
//! generated and whose file data stays where it is ([`block::TreeImage`]). Packing is therefore a scan, not a copy.

pub mod block;
mod content;
mod digest;
pub mod dir;
pub mod existing;
pub mod format;
mod hashes;
mod identity;
pub mod layers;
mod layout;
pub mod lookup;
pub mod open;
pub mod root;
mod spool;
mod stamp;
pub mod tar;
pub mod tree;

pub use block::{BlockImage, TreeImage, write_image};
pub use content::ReadError;
pub use digest::file_digest;
pub use identity::ImageId;
pub use layout::TooLarge;
pub use open::{OnProgress, OpenOptions, Opened, Phase, Progress, open};

/// Bytes as the host's file names are.
fn os(bytes: &[u8]) -> &std::path::Path {
    std::path::Path::new(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(bytes))
}

/// A name beside `target` for writing it anew, that no other writer uses: of this process or another. A home's `gc`
/// knows what is left over from a process that died by the dot and the end.
fn temporary_beside(target: &std::path::Path) -> std::path::PathBuf {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{}.{number}.tmp", std::process::id()))
}
