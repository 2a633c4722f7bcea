//! The boot keyframe: booting is the same for every run of one kernel, so it is done once.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rewind_platform::{PLATFORM_VERSION, record::RecordHeader};
use vmm::{Clock, EngineKind, KernelFiles, Machine, MachineConfig, RecordSink, Stop, Until, memory::PageSet};

use crate::{
    durable, envelope,
    error::StageError,
    home::{Home, RunDir},
    keyframe::{self, Base, Keyframe, PageAt, Whole},
    spec::{Content, Spec},
    store::PAGE_SIZE,
    trace::{TraceError, TraceHasher, TraceReader, TraceWriter},
};

mod damage;
pub(crate) use damage::unusable;

/// Kernel and initramfs with their hashes. The files are read only where a machine is booted from them.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// BLAKE3 of vmlinux.
    pub kernel: Content,
    /// BLAKE3 of the initramfs.
    pub initramfs: Content,
    /// The command line.
    pub command_line: String,
    /// Bytes of both.
    lens: [u64; 2],
    files: Files,
}

#[derive(Clone, Debug)]
enum Files {
    Read(KernelFiles),
    /// Paths of vmlinux and initramfs.
    At(Arc<[PathBuf; 2]>),
}

impl Kernel {
    /// Hashes the files.
    pub fn new(files: KernelFiles) -> Kernel {
        let hash = |bytes: &[u8]| Content(*blake3::hash(bytes).as_bytes());
        let (kernel, initramfs) = (hash(&files.vmlinux), hash(&files.initramfs));
        Kernel::holding(files, kernel, initramfs)
    }

    fn holding(files: KernelFiles, kernel: Content, initramfs: Content) -> Kernel {
        let lens = [files.vmlinux.len() as u64, files.initramfs.len() as u64];
        let command_line = files.command_line.clone();
        Kernel { kernel, initramfs, command_line, lens, files: Files::Read(files) }
    }

    /// The files at these paths (vmlinux, initramfs), whose hashes and sizes are known, with the standard command line.
    pub fn at(paths: [PathBuf; 2], [kernel, initramfs]: [(Content, u64); 2]) -> Kernel {
        Kernel {
            kernel: kernel.0,
            initramfs: initramfs.0,
            command_line: vmm::boot::COMMAND_LINE.to_owned(),
            lens: [kernel.1, initramfs.1],
            files: Files::At(Arc::new(paths)),
        }
    }

    /// The files, read if they were not.
    pub fn files(&self) -> Result<KernelFiles, StageError> {
        let paths = match &self.files {
            Files::Read(files) => return Ok(files.clone()),
            Files::At(paths) => paths,
        };
        let files = KernelFiles::read(&paths[0], &paths[1]);
        let read = Kernel::new(files.map_err(|error| StageError::Boot(error.to_string()))?);
        if (read.kernel, read.initramfs) != (self.kernel, self.initramfs) {
            let what = format!("{} or {} was changed meanwhile", paths[0].display(), paths[1].display());
            return Err(StageError::Boot(what));
        }
        Ok(KernelFiles { command_line: self.command_line.clone(), ..read.files()? })
    }

    /// Keeps both files in the home, where they are not there yet.
    pub fn keep(&self, home: &Home) -> Result<(), StageError> {
        if !home.has_blob(self.kernel, self.lens[0]) || !home.has_blob(self.initramfs, self.lens[1]) {
            let files = self.files()?;
            home.keep_known(self.kernel, &files.vmlinux)?;
            home.keep_known(self.initramfs, &files.initramfs)?;
        }
        Ok(())
    }

    /// The files a run was recorded with, from the home.
    pub fn of(home: &Home, spec: &Spec) -> Result<Kernel, StageError> {
        let files = KernelFiles {
            vmlinux: home.blob("kernel", spec.kernel)?.into(),
            initramfs: home.blob("initramfs", spec.initramfs)?.into(),
            command_line: spec.command_line.clone(),
        };
        Ok(Kernel::holding(files, spec.kernel, spec.initramfs))
    }
}

/// A boot keyframe, ready to start machines from.
#[derive(Debug)]
pub struct Boot {
    /// Its name.
    pub key: Content,
    /// Pages and state.
    pub whole: Whole,
    /// The raw copy of all RAM, where there can be one.
    pub raw: Option<PathBuf>,
    /// Default records made while booting.
    pub records: u64,
    /// Hash state after them.
    pub hasher: TraceHasher,
    /// Where its trace is, for runs to begin theirs with.
    pub dir: PathBuf,
}

/// What names the boot of this spec on this engine.
pub fn key(spec: &Spec, engine: EngineKind) -> Content {
    let parts = (
        keyframe::FILE.version,
        PLATFORM_VERSION,
        spec.platform,
        &spec.cpu_model,
        spec.kernel,
        spec.initramfs,
        &spec.command_line,
        spec.memory,
        engine.name(),
    );
    let encoded = postcard::to_allocvec(&parts).expect("plain data encodes");
    Content(blake3::derive_key("rewind boot keyframe 1", &encoded))
}

/// The boot keyframe of this spec, made if the home has none that can be used. `kernel` is only asked for then.
pub fn ensure(
    home: &Home,
    spec: &Spec,
    engine: EngineKind,
    kernel: &dyn Fn() -> Result<Kernel, StageError>,
    notice: &dyn Fn(&str),
) -> Result<Boot, StageError> {
    let key = key(spec, engine);
    let here = || open_in(home, home.boot_dir(key), key, key);
    match here() {
        Ok(Some(boot)) => return Ok(boot),
        Ok(None) => notice("booting the guest once for this kernel; later runs start from there"),
        Err(error) if damage::is_only_damage(&error) => {
            let why = damage::told(&error);
            notice(&format!(
                "the boot keyframe cannot be used ({why}): booting the guest again, which gives the same"
            ));
        }
        Err(error) => return Err(error),
    }
    make(home, spec, engine, &kernel()?, key)?;
    here()?.ok_or_else(|| StageError::Boot("its keyframe vanished".into()))
}

/// The boot keyframe with this key, if the home has it whole. One that is damaged can be made again: [`ensure`] says so.
pub fn open(home: &Home, key: Content) -> Result<Option<Boot>, StageError> {
    match open_in(home, home.boot_dir(key), key, key) {
        Err(error) if damage::is_only_damage(&error) => Ok(None),
        other => other,
    }
}

/// The boot keyframe that an imported run brought, if it did. It serves that run alone: nobody here has seen that the
/// kernel boots to it.
pub fn open_own(home: &Home, run: &RunDir, key: Content) -> Result<Option<Boot>, StageError> {
    let mut hasher = blake3::Hasher::new_derive_key("rewind imported boot keyframe 1");
    hasher.update(&key.0).update(&run.id().0);
    open_in(home, run.own_boot(), key, Content(*hasher.finalize().as_bytes()))
}

/// `cached` names its raw copy.
fn open_in(home: &Home, dir: PathBuf, key: Content, cached: Content) -> Result<Option<Boot>, StageError> {
    let Some((whole, records, hasher)) = read_in(&dir, key)? else { return Ok(None) };
    let raw = keyframe::raw_file(&home.cache("ram"), cached, &whole, &name(key), home.pages())?;
    if raw.is_none() {
        // Where every machine is filled from the store, a missing page is found now, when booting again helps.
        damage::all_there(&whole, &name(key), home.pages())?;
    }
    Ok(Some(Boot { key, whole, raw, records, hasher, dir }))
}

/// What errors call it.
fn name(key: Content) -> String {
    format!("boot {}", &key.to_string()[..16])
}

/// The keyframe, how many records its trace has, and their hash.
fn read_in(dir: &Path, key: Content) -> Result<Option<(Whole, u64, TraceHasher)>, StageError> {
    let Some(step) = keyframe::list(dir).pop() else { return Ok(None) };
    let run = name(key);
    let whole = keyframe::whole(dir, &run, step)?;
    let trace = TraceReader::open(dir)?;
    let mut hasher = TraceHasher::default();
    for record in trace.iter() {
        let record = record?;
        hasher.add(&record.header, &record.payload);
    }
    let records = trace.records();
    if records != whole.keyframe.records {
        let what = "its trace is cut short";
        return Err(StageError::Keyframe(keyframe::KeyframeError::Nonsense { run, step, what }));
    }
    Ok(Some((whole, records, hasher)))
}

struct BootSink {
    writer: TraceWriter,
    console: Vec<u8>,
    error: Option<durable::WriteError>,
}

impl RecordSink for BootSink {
    fn record(&mut self, header: &RecordHeader, payload: &[u8]) {
        if let Err(error) = self.writer.add(header, payload) {
            self.error.get_or_insert(error);
        }
        if header.kind == rewind_platform::record::REC_CONSOLE {
            self.console(payload);
        }
    }

    fn console(&mut self, text: &[u8]) {
        self.console.extend_from_slice(text);
        let excess = self.console.len().saturating_sub(4096);
        self.console.drain(..excess);
    }
}

fn make(
    home: &Home,
    spec: &Spec,
    engine: EngineKind,
    kernel: &Kernel,
    key: Content,
) -> Result<(), StageError> {
    let config = config(spec, engine, kernel.files()?)?;
    let mut machine = Machine::boot(&MachineConfig { clock: Clock::Steps, ..config })?;
    let target = home.boot_dir(key);
    let dir = durable::temporary_beside(&target);
    durable::create_dir(&dir)?;
    let made = make_in(home, &mut machine, &dir).and_then(|()| damage::put_in_place(home, &dir, key));
    if made.is_err() {
        let _ = std::fs::remove_dir_all(&dir);
    }
    made
}

fn make_in(home: &Home, machine: &mut Machine, dir: &Path) -> Result<(), StageError> {
    let mut sink = BootSink { writer: TraceWriter::create(dir)?, console: Vec::new(), error: None };
    let stop = machine.run(&Until::END, &mut sink)?;
    if stop != Stop::Job {
        let console = String::from_utf8_lossy(&sink.console).into_owned();
        return Err(StageError::Boot(format!("{stop:?}; its console ended with:\n{console}")));
    }
    if let Some(error) = sink.error {
        return Err(error.into());
    }
    sink.writer.sync()?;
    let step = machine.step().0;
    let mut pages = Vec::new();
    let mut content = [0; PAGE_SIZE];
    for page in 0..machine.memory().pages() {
        machine.memory().read(machine.memory().address_of(page), &mut content)?;
        // A boot may be made because a page of it is corrupt.
        let hash = home.pages().put_checked(&content)?;
        if !hash.is_zero() {
            pages.push(PageAt { page, hash });
        }
    }
    home.pages().sync()?;
    let keyframe = Keyframe {
        step,
        records: sink.writer.records(),
        memory: machine.memory().ram_len(),
        base: Base::Full,
        machine: encode_state(&machine.capture()?),
        pages,
        written: Vec::new(),
    };
    Ok(envelope::write(keyframe::FILE, &dir.join(keyframe::file_name(step)), &keyframe)?)
}

/// The machine a spec asks for.
pub(crate) fn config(
    spec: &Spec,
    engine: EngineKind,
    kernel: KernelFiles,
) -> Result<MachineConfig, StageError> {
    let config = MachineConfig::new(spec.memory, engine, kernel);
    if spec.platform != PLATFORM_VERSION || spec.cpu_model != config.cpu_model.name {
        return Err(StageError::State(format!(
            "this run is for platform version {} and CPU model {}; this program has version {PLATFORM_VERSION} and {}",
            spec.platform, spec.cpu_model, config.cpu_model.name
        )));
    }
    Ok(MachineConfig { clock: spec.clock, ..config })
}

/// The machine's state as keyframes hold it.
pub(crate) fn encode_state(state: &vmm::MachineState) -> Vec<u8> {
    postcard::to_allocvec(state).expect("plain data encodes")
}

/// And back.
pub(crate) fn decode_state(bytes: &[u8], of: &str) -> Result<vmm::MachineState, StageError> {
    postcard::from_bytes(bytes).map_err(|_| StageError::State(of.to_owned()))
}

/// An empty set for all pages of a machine.
pub(crate) fn page_set(memory: u64) -> PageSet {
    PageSet::new(memory / PAGE_SIZE as u64)
}

/// A boot keyframe shared by the machines started from it.
pub type SharedBoot = Arc<Boot>;

impl From<TraceError> for Box<StageError> {
    fn from(error: TraceError) -> Self {
        Box::new(error.into())
    }
}

#[cfg(test)]
mod tests;
