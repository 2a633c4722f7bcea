//! What `--root` names, opened: a directory, a tar, a container's image, or an EROFS image.

use crate::block::{BlockImage, TreeImage, copy_image};
use crate::content::{Backing, ReadError, Reader};
use crate::dir::{DirError, DirOptions, LeftOut, read_dir};
use crate::existing::{ExistingError, FileImage, is_erofs};
use crate::identity::{ImageId, identify, identify_file};
use crate::layers::{Bundle, LayersError};
use crate::layout::TooLarge;
use crate::spool::{Packing, packing, unpacked};
use crate::stamp::stamp_of;
use crate::tar::unpack::{TarError, unpack};
use crate::tree::Tree;
use std::{fs::File, io, path::Path, path::PathBuf};

/// What is being done, for a progress bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Names and metadata are read; bytes of a tar, or files of a directory.
    Scan,
    /// A compressed tar is unpacked into the cache; bytes written.
    Unpack,
    /// Data is hashed; bytes.
    Hash,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// How much of it is done.
    pub done: u64,
    /// Of how much, where that is known.
    pub total: Option<u64>,
}

/// Told of progress, from several threads.
pub type OnProgress<'a> = &'a (dyn Fn(Progress) + Sync);

/// How to open a root.
pub struct OpenOptions<'a> {
    /// Where digests and unpacked tars are kept. Deleting it costs time only.
    pub cache: &'a Path,
    /// For directories.
    pub directory: DirOptions,
    /// Told of progress.
    pub progress: OnProgress<'a>,
}

/// What a root is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceKind {
    /// A directory.
    Directory,
    /// A tar of a file tree, as `docker export` writes it.
    Tar,
    /// The layers of a container's image, as `docker save` writes them or in an OCI layout.
    Layers,
    /// An EROFS image.
    Erofs,
}

/// A root could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {} as a root", .path.display())]
pub struct OpenError {
    /// What was given.
    pub path: PathBuf,
    /// What is wrong with it.
    #[source]
    pub cause: OpenCause,
}

/// What is wrong with a root.
#[derive(Debug, thiserror::Error)]
pub enum OpenCause {
    /// The host says no.
    #[error(transparent)]
    Host(#[from] io::Error),
    /// Neither of the kinds.
    #[error("it is neither a directory, nor a tar (plain, gzip or zstd), nor an EROFS image")]
    Kind,
    /// Empty.
    #[error("it has no files in it")]
    Empty,
    /// As a directory.
    #[error(transparent)]
    Directory(#[from] DirError),
    /// As a tar.
    #[error(transparent)]
    Tar(#[from] TarError),
    /// As a container's image.
    #[error(transparent)]
    Layers(#[from] LayersError),
    /// As an EROFS image.
    #[error(transparent)]
    Erofs(#[from] ExistingError),
    /// It does not fit.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// Its data.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// A root, ready to be served.
#[derive(Debug)]
pub struct Opened {
    /// Its content.
    pub id: ImageId,
    /// What it was made from.
    pub kind: SourceKind,
    /// What was left out, for a notice.
    pub left_out: Vec<LeftOut>,
    image: Image,
}

#[derive(Clone, Debug)]
enum Image {
    Tree(TreeImage),
    File(FileImage),
}

impl Opened {
    /// The image, for one machine. Any number may be had at once.
    pub fn image(&self) -> Box<dyn BlockImage> {
        match &self.image {
            Image::Tree(image) => Box::new(image.clone()),
            Image::File(image) => Box::new(image.clone()),
        }
    }

    /// Absolute paths of the files whose data lies in one of these blocks, as far as that is known without looking through
    /// the image.
    pub fn files_at(&self, blocks: &mut dyn Iterator<Item = u64>) -> Vec<Vec<u8>> {
        match &self.image {
            Image::Tree(image) => image.files_at(blocks),
            Image::File(_) => Vec::new(),
        }
    }

    /// Copies the image into `file`, which must be empty; holes stay holes. `progress` is told the bytes done, of the
    /// image's length.
    pub fn write_to(&self, file: &File, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
        match &self.image {
            Image::Tree(image) => crate::block::write_image(&mut image.clone(), file, progress),
            Image::File(image) => copy_image(&mut image.clone(), file, progress),
        }
    }
}

/// Opens what `path` names. Reads all data of what it has not seen before, for the id; an unchanged one is recognised
/// by its files' versions.
pub fn open(path: &Path, options: &OpenOptions<'_>) -> Result<Opened, OpenError> {
    open_any(path, options).map_err(|cause| OpenError { path: path.to_owned(), cause })
}

fn open_any(path: &Path, options: &OpenOptions<'_>) -> Result<Opened, OpenCause> {
    let kind = std::fs::metadata(path)?;
    let (tree, left_out, kind) = if kind.is_dir() {
        let (tree, left_out) = read_dir(path, options.directory)?;
        (tree, left_out, SourceKind::Directory)
    } else if kind.is_file() {
        let file = File::open(path)?;
        if is_erofs(&file)? {
            let image = FileImage::new(file, path)?;
            let id = identify_file(&image, options.cache, options.progress)?;
            return Ok(Opened {
                id,
                kind: SourceKind::Erofs,
                left_out: Vec::new(),
                image: Image::File(image),
            });
        }
        (read_tar(file, path, options)?, Vec::new(), SourceKind::Tar)
    } else {
        return Err(OpenCause::Kind);
    };
    let (tree, kind) = match container_root(&tree, options)? {
        Some(root) => (root, SourceKind::Layers),
        None => (tree, kind),
    };
    if tree.names(0).is_none_or(|names| names.is_empty()) {
        return Err(OpenCause::Empty);
    }
    let mut image = TreeImage::new(tree)?;
    let id = identify(&mut image, options.cache, options.progress)?;
    Ok(Opened { id, kind, left_out, image: Image::Tree(image) })
}

/// The root of a container's image, if the tree is one.
fn container_root(tree: &Tree, options: &OpenOptions<'_>) -> Result<Option<Tree>, OpenCause> {
    let mut bundle = Bundle::new(tree, Reader::shared(tree.backings.clone()));
    let Some(layers) = bundle.layers()? else { return Ok(None) };
    Ok(Some(bundle.root(&layers, options.cache, options.progress)?))
}

fn read_tar(mut file: File, path: &Path, options: &OpenOptions<'_>) -> Result<Tree, OpenCause> {
    let mut len = file.metadata()?.len();
    let packing = packing(&file, &(0..len))?;
    if packing != Packing::None {
        file = unpacked(&file, 0..len, packing, options.cache, options.progress)?;
        len = file.metadata()?.len();
    }
    // Shorter than any header.
    if (1..512).contains(&len) {
        return Err(OpenCause::Kind);
    }
    let stamp = stamp_of(&file)?;
    let mut tree = Tree::new();
    tree.add_backing(Backing::File { file, path: path.to_owned(), stamp });
    let scanned = |done| (options.progress)(Progress { phase: Phase::Scan, done, total: Some(len) });
    unpack(&mut tree, 0, 0..len, false, &scanned).map_err(|error| match error.cause {
        crate::tar::unpack::TarCause::Entry(crate::tar::EntryError::Header(
            crate::tar::HeaderError::Checksum,
        )) if tree.nodes.len() == 1 => OpenCause::Kind,
        _ => error.into(),
    })?;
    Ok(tree)
}
