//! Kernels and initramfs files, kept by content so that a run can be replayed after the file it came from has
//! changed, and exported.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::Home;
use crate::{
    durable::{self, WriteError},
    spec::Content,
};

/// Why a blob could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlobError {
    /// The host refused.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
    /// Not there.
    #[error("{what} {content} is not in this home: it came from a run that was imported for viewing only")]
    Missing {
        /// What it is for.
        what: &'static str,
        /// Its hash.
        content: Content,
    },
    /// Changed on disk.
    #[error("{path} is damaged: its content is not what its name says; remove it and record again")]
    Damaged {
        /// Which file.
        path: PathBuf,
    },
    /// Writing failed.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl Home {
    /// Where a blob with this content is or would be.
    pub fn blob_path(&self, content: Content) -> PathBuf {
        self.path.join("blobs").join(content.to_string())
    }

    /// Keeps a copy of the file and returns its hash. Reads the file once.
    pub fn keep_file(&self, file: &Path) -> Result<Content, BlobError> {
        let bytes = std::fs::read(file).map_err(|source| BlobError::Io { path: file.to_owned(), source })?;
        self.keep_bytes(&bytes)
    }

    /// Keeps these bytes and returns their hash.
    pub fn keep_bytes(&self, bytes: &[u8]) -> Result<Content, BlobError> {
        let content = Content(*blake3::hash(bytes).as_bytes());
        self.keep_known(content, bytes)?;
        Ok(content)
    }

    /// As [`Home::keep_bytes`], of bytes whose hash is `content`.
    pub fn keep_known(&self, content: Content, bytes: &[u8]) -> Result<(), BlobError> {
        if !self.has_blob(content, bytes.len() as u64) {
            durable::create_dir(&self.path.join("blobs"))?;
            durable::replace(&self.blob_path(content), bytes)?;
        }
        Ok(())
    }

    /// Is a blob of this content and length there? ([`Home::blob`] finds out if it was changed.)
    pub fn has_blob(&self, content: Content, len: u64) -> bool {
        std::fs::metadata(self.blob_path(content)).is_ok_and(|meta| meta.len() == len)
    }

    /// Reads a blob and checks it.
    pub fn blob(&self, what: &'static str, content: Content) -> Result<Vec<u8>, BlobError> {
        let path = self.blob_path(content);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(BlobError::Missing { what, content });
            }
            Err(source) => return Err(BlobError::Io { path, source }),
        };
        if *blake3::hash(&bytes).as_bytes() != content.0 {
            return Err(BlobError::Damaged { path });
        }
        Ok(bytes)
    }
}
