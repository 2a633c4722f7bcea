//! Executables and libraries of a guest by what it mapped: from its root, or from its page cache if it made them.

use std::{collections::BTreeMap, sync::Arc};

use rewind_platform::state::Fact;
use vmm::address::Gva;

use crate::{
    files,
    kernel::{Kernel, Read},
    maps::Mapping,
    module::Module,
    separate,
};

/// Gives the content of a file of the guest's root; `None` if there is no such file.
pub type ReadFile = Box<dyn FnMut(&[u8]) -> Option<Vec<u8>> + Send>;

/// Largest file read for its symbols.
const MOST_BYTES: u64 = 1 << 30;

/// Which content of a path: of the root, which does not change, or one the guest made (its BLAKE3).
type Version = Option<[u8; 32]>;

/// Reads executables and debug information, each once.
pub struct Files {
    read: ReadFile,
    modules: BTreeMap<(Vec<u8>, Version), Option<Arc<Module>>>,
    complaints: BTreeMap<Vec<u8>, String>,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Files({} modules)", self.modules.len())
    }
}

impl Files {
    /// Over `read`.
    pub fn new(read: ReadFile) -> Self {
        Files { read, modules: BTreeMap::new(), complaints: BTreeMap::new() }
    }

    /// Content of a file of the guest's root.
    pub fn content(&mut self, path: &[u8]) -> Option<Vec<u8>> {
        (self.read)(path)
    }

    /// What is wrong with files that were asked for, by path: what a user should know who wonders where the lines
    /// are.
    pub fn complaints(&self) -> &BTreeMap<Vec<u8>, String> {
        &self.complaints
    }

    /// The ELF file at `path` of the root, with its separate debug file if the root has one. `None` if it is not
    /// one.
    pub fn module(&mut self, path: &[u8]) -> Option<Arc<Module>> {
        self.remembered(path, None, |files| (files.read)(path))
    }

    /// The ELF file behind a mapping, as the guest has it.
    pub fn mapped(&mut self, kernel: &Kernel<'_>, mapping: &Mapping) -> Option<Arc<Module>> {
        let (file, path) = (mapping.file?, mapping.path.as_ref()?);
        match guest_made(kernel, file) {
            Ok(Some(content)) => {
                let version = Some(*blake3::hash(&content).as_bytes());
                self.remembered(path, version, |_| Some(content))
            }
            Ok(None) => {
                let known = self.module(path)?;
                if first_page(kernel, file).is_ok_and(|page| page.is_none_or(|page| known.begins_with(&page)))
                {
                    return Some(known);
                }
                let text = "is no longer the file the run used: no symbols and lines for it".to_owned();
                self.complaints.insert(path.clone(), text);
                None
            }
            Err(_) => None,
        }
    }

    /// Content of the file behind a mapping, as the guest has it.
    pub fn mapped_content(&mut self, kernel: &Kernel<'_>, mapping: &Mapping) -> Option<Vec<u8>> {
        let (file, path) = (mapping.file?, mapping.path.as_ref()?);
        match guest_made(kernel, file) {
            Ok(Some(content)) => Some(content),
            Ok(None) => {
                let content = (self.read)(path)?;
                let same = |page: Option<Vec<u8>>| page.is_none_or(|page| content.starts_with(&page));
                first_page(kernel, file).is_ok_and(same).then_some(content)
            }
            Err(_) => None,
        }
    }

    fn remembered(
        &mut self,
        path: &[u8],
        version: Version,
        content: impl FnOnce(&mut Self) -> Option<Vec<u8>>,
    ) -> Option<Arc<Module>> {
        let key = (path.to_vec(), version);
        if let Some(known) = self.modules.get(&key) {
            return known.clone();
        }
        let module = content(self).and_then(|data| self.load(path, &data)).map(Arc::new);
        self.modules.insert(key, module.clone());
        module
    }

    fn load(&mut self, path: &[u8], data: &[u8]) -> Option<Module> {
        let module = Module::new(path, data, None).ok()?;
        if module.has_debug_info() {
            return Some(module);
        }
        let link = module.debug_link.as_ref().map(|(name, crc)| (&name[..], *crc));
        for candidate in separate::candidates(path, module.build_id.as_deref(), link) {
            // A damaged debug file is worth less than the symbols the executable has.
            let content = (self.read)(&candidate.path).filter(|content| candidate.fits(content));
            let whole = content.and_then(|content| Module::new(path, data, Some(&content)).ok());
            if let Some(whole) = whole.filter(Module::has_debug_info) {
                return Some(whole);
            }
        }
        Some(module)
    }
}

/// Content of a file that lives in the guest's memory alone; `None` for one of its root.
fn guest_made(kernel: &Kernel<'_>, file: Gva) -> Read<Option<Vec<u8>>> {
    let inode = Gva(kernel.field(file, Fact::FileInode)?);
    match files::file_system(kernel, inode)?.as_slice() {
        b"tmpfs" | b"ramfs" | b"devtmpfs" => files::cached_content(kernel, inode, MOST_BYTES),
        _ => Ok(None),
    }
}

/// The first page of a file (less if it is shorter), if the guest has it cached.
fn first_page(kernel: &Kernel<'_>, file: Gva) -> Read<Option<Vec<u8>>> {
    let inode = Gva(kernel.field(file, Fact::FileInode)?);
    let size = files::inode_size(kernel, inode)?.min(4096) as usize;
    let Some(page) = files::cached_page(kernel, inode, 0)? else { return Ok(None) };
    let mut bytes = vec![0; size];
    Ok(kernel.memory().read(page, &mut bytes).ok().map(|()| bytes))
}
