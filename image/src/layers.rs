//! Images of containers: what `docker save` writes (a tar with `manifest.json`) and OCI image layouts (a tar or a
//! directory with `index.json`), as the root file system their layers make.
//!
//! Source: the OCI image specification 1.1 (`image-layout.md`, `layer.md`) and the layout of `docker save`.

use crate::content::{Backing, Content, ReadError, Reader};
use crate::spool::{Packing, packing, unpacked};
use crate::stamp::stamp_of;
use crate::tar::unpack::{TarError, unpack};
use crate::tree::{Kind, NodeId, Tree};
use crate::{OnProgress, Phase, Progress};
use serde::Deserialize;
use std::io;
use std::path::{Path, PathBuf};

/// Largest JSON document read.
const JSON_MAX: u64 = 4 << 20;
/// Most indexes inside indexes.
const NESTING_MAX: usize = 4;

/// An image of a container could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LayersError {
    /// Several images in one.
    #[error("it holds {0} images, and one is needed: save one alone (`docker save NAME`)")]
    Several(usize),
    /// A document that is damaged, missing or too large.
    #[error("`{0}` in it is missing, damaged or too large")]
    Document(String),
    /// A blob that is not there.
    #[error("the layer `{0}` is not in it")]
    Missing(String),
    /// Not made for this machine.
    #[error("it holds no image for linux/amd64")]
    Platform,
    /// A layer cannot be read.
    #[error("its layer `{0}`")]
    Layer(String, #[source] io::Error),
    /// A layer's content.
    #[error(transparent)]
    Tar(#[from] TarError),
    /// The host says no.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// One image in `manifest.json` of `docker save`.
#[derive(Deserialize)]
struct SavedImage {
    #[serde(rename = "Config")]
    config: String,
    #[serde(rename = "Layers")]
    layers: Vec<String>,
}

/// An OCI index or manifest.
#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    manifests: Vec<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    #[serde(default)]
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

/// A tree that may be a container's image, not a root.
pub(crate) struct Bundle<'a> {
    tree: &'a Tree,
    reader: Reader,
}

impl<'a> Bundle<'a> {
    /// `reader` is of the tree's backings.
    pub(crate) fn new(tree: &'a Tree, reader: Reader) -> Bundle<'a> {
        Bundle { tree, reader }
    }

    /// The names of the layers' tars, lowest first; none if the tree is a root file system, even one with a file
    /// `manifest.json`.
    pub(crate) fn layers(&mut self) -> Result<Option<Vec<String>>, LayersError> {
        if self.find("manifest.json").is_some()
            && let Ok(images) = self.json::<Vec<SavedImage>>("manifest.json")
            && images.iter().all(|image| self.find(&image.config).is_some())
            && !images.is_empty()
        {
            let [image] = &images[..] else { return Err(LayersError::Several(images.len())) };
            return Ok(Some(image.layers.clone()));
        }
        if self.find("oci-layout").is_some() && self.find("index.json").is_some() {
            return self.oci_layers("index.json", NESTING_MAX).map(Some);
        }
        Ok(None)
    }

    fn oci_layers(&mut self, name: &str, nesting: usize) -> Result<Vec<String>, LayersError> {
        let document: Document = self.json(name)?;
        if document.manifests.is_empty() {
            return Ok(document.layers.iter().map(blob).collect());
        }
        let ours = |one: &&Descriptor| {
            one.platform.as_ref().is_none_or(|p| p.architecture == "amd64" && p.os == "linux")
        };
        let found: Vec<_> = document.manifests.iter().filter(ours).collect();
        match &found[..] {
            [] => Err(LayersError::Platform),
            [_] if nesting == 0 => Err(LayersError::Document(name.to_owned())),
            [one] => self.oci_layers(&blob(one), nesting - 1),
            several => Err(LayersError::Several(several.len())),
        }
    }

    /// The regular file at a path of the bundle. Links are followed: older `docker save` stores a layer once.
    fn find(&self, path: &str) -> Option<(&'a Content, u64)> {
        let mut stack: Vec<NodeId> = vec![0];
        let mut waiting: Vec<&[u8]> = path.as_bytes().rsplit(|&byte| byte == b'/').collect();
        let mut links = 0;
        while let Some(part) = waiting.pop() {
            match part {
                b"" | b"." => continue,
                b".." => {
                    stack.truncate((stack.len() - 1).max(1));
                    continue;
                }
                _ => {}
            }
            let child = *self.tree.names(*stack.last()?)?.get(part)?;
            match &self.tree.node(child).kind {
                Kind::Directory(_) => stack.push(child),
                Kind::Symlink(target) if links < 8 => {
                    links += 1;
                    waiting.extend(target.rsplit(|&byte| byte == b'/'));
                }
                Kind::File { size, content } => return waiting.is_empty().then_some((content, *size)),
                _ => return None,
            }
        }
        None
    }

    fn json<T: for<'de> Deserialize<'de>>(&mut self, name: &str) -> Result<T, LayersError> {
        let bad = || LayersError::Document(name.to_owned());
        let (content, size) = self.find(name).filter(|&(_, size)| size <= JSON_MAX).ok_or_else(bad)?;
        let mut bytes = vec![0; size as usize];
        self.reader.read(content, 0, &mut bytes)?;
        serde_json::from_slice(&bytes).map_err(|_| bad())
    }

    /// Puts the layers one over the other.
    pub(crate) fn root(
        &mut self,
        layers: &[String],
        cache: &Path,
        progress: OnProgress<'_>,
    ) -> Result<Tree, LayersError> {
        let mut root = Tree::new();
        for name in layers {
            let (content, size) = self.find(name).ok_or_else(|| LayersError::Missing(name.clone()))?;
            let fail = |error| LayersError::Layer(name.clone(), error);
            let (mut file, mut range, mut path) = self.open(content, size).map_err(fail)?;
            let packing = packing(&file, &range).map_err(fail)?;
            if packing != Packing::None {
                file = unpacked(&file, range, packing, cache, progress).map_err(fail)?;
                range = 0..file.metadata().map_err(fail)?.len();
                path = path.join(name);
            }
            let stamp = stamp_of(&file).map_err(fail)?;
            let backing = root.add_backing(Backing::File { file, path, stamp });
            let total = Some(range.end);
            unpack(&mut root, backing, range, true, &|done| {
                progress(Progress { phase: Phase::Scan, done, total });
            })?;
        }
        Ok(root)
    }

    /// The file a layer lies in, where, and its name for messages.
    fn open(
        &mut self,
        content: &Content,
        size: u64,
    ) -> io::Result<(std::fs::File, std::ops::Range<u64>, PathBuf)> {
        match content {
            Content::Host { .. } => {
                let (file, path) = self.reader.host(content)?;
                Ok((file.try_clone()?, 0..size, path))
            }
            Content::Pieces { backing, pieces } => {
                let range = match &pieces[..] {
                    [] => 0..0,
                    [piece] if piece.at == 0 && piece.len == size => piece.offset..piece.offset + size,
                    _ => return Err(io::Error::other("it is stored as a sparse file")),
                };
                let Backing::File { file, path, .. } = &self.reader.backings()[*backing as usize] else {
                    unreachable!("pieces lie in a file")
                };
                Ok((file.try_clone()?, range, path.clone()))
            }
        }
    }
}

fn blob(descriptor: &Descriptor) -> String {
    format!("blobs/{}", descriptor.digest.replacen(':', "/", 1))
}
