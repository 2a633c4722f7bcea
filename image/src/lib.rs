//! Root images: what `--root` can be, and the host's own root, as a read-only block image for the machine.
//!
//! A directory or tar becomes a [`tree::Tree`]; a tree is laid out as an uncompressed EROFS image whose metadata is
//! generated and whose file data stays where it is ([`block::TreeImage`]). Packing is therefore a scan, not a copy.

pub mod block;
mod content;
pub mod dir;
pub mod format;
mod layout;
mod stamp;
pub mod tree;

pub use block::{BlockImage, TreeImage, write_image};
pub use content::ReadError;
pub use layout::TooLarge;

/// Bytes as the host's file names are.
fn os(bytes: &[u8]) -> &std::path::Path {
    std::path::Path::new(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(bytes))
}
