//! Reading an exported run. Everything in the file may be made to harm.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use rewind_platform::record::RecordHeader;

use super::{
    ArchiveError, ENTRY_LIMIT, KEYFRAME_BYTES_LIMIT, KEYFRAMES_LIMIT, MAGIC, PAGES_LIMIT, VERSION, tag,
};
use crate::{
    boot, durable,
    envelope::{self, ReadError},
    error::StageError,
    home::{Finished, Home, OpenRun, RunDir},
    input::{self, InputLog},
    kept::{self, Kept},
    keyframe::{self, Base, Keyframe},
    outcome::{self, Outcome, Recording},
    spec::{self, Content, Spec},
    store::{PAGE_SIZE, PageHash},
    trace::{RECORD_HEADER, RECORD_LIMIT, TraceWriter},
};

/// Largest kernel or initramfs.
const BLOB_LIMIT: usize = 128 << 20;

/// Either side of the reading.
enum Bad {
    Io(io::Error),
    Refused(String),
    Stage(StageError),
}

impl From<io::Error> for Bad {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Bad::Refused("it is cut short".into()),
            io::ErrorKind::Other | io::ErrorKind::InvalidData => {
                Bad::Refused(format!("its data is damaged: {error}"))
            }
            _ => Bad::Io(error),
        }
    }
}

impl<E: Into<StageError>> From<E> for Bad {
    fn from(error: E) -> Self {
        Bad::Stage(error.into())
    }
}

fn refuse<T>(what: impl Into<String>) -> Result<T, Bad> {
    Err(Bad::Refused(what.into()))
}

/// What [`import`] came to.
#[derive(Debug)]
pub struct Imported {
    /// The run.
    pub run: RunDir,
    /// The home had it, and nothing was added.
    pub known: bool,
}

/// Imports the run in `path`. If the home has it already, that one is kept. Nothing is left of it once `interrupted` is
/// set, but pages that the next gc drops.
pub fn import(home: &Home, path: &Path, interrupted: &AtomicBool) -> Result<Imported, ArchiveError> {
    let io = |source| ArchiveError::Io { what: "read", path: path.to_owned(), source };
    let mut file = BufReader::new(File::open(path).map_err(io)?);
    let mut head = [0; 12];
    match file.read_exact(&mut head) {
        Ok(()) if head[..8] == MAGIC => {}
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(io(error)),
        _ => return Err(ArchiveError::Foreign(path.to_owned())),
    }
    let found = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
    if found != VERSION {
        return Err(ArchiveError::Version { path: path.to_owned(), found });
    }
    let mut stream = zstd::stream::read::Decoder::with_buffer(file).map_err(io)?;
    // The window a frame may ask memory for: 8 MiB, what level 3 needs at most.
    stream.window_log_max(23).map_err(io)?;
    let entries = Entries { stream, hasher: blake3::Hasher::new(), path, memory: 0, interrupted };
    let mut import = Import { home, entries, open: None };
    match import.run() {
        Ok(imported) => Ok(imported),
        Err(bad) => {
            if let Some(open) = import.open.take() {
                let _ = open.discard();
            }
            Err(match bad {
                Bad::Io(source) => io(source),
                Bad::Refused(what) => ArchiveError::Refused { path: path.to_owned(), what },
                Bad::Stage(error) => error.into(),
            })
        }
    }
}

struct Entries<'p, R: Read> {
    stream: R,
    hasher: blake3::Hasher,
    path: &'p Path,
    /// Bytes of the machine's memory, once known.
    memory: u64,
    interrupted: &'p AtomicBool,
}

impl<R: Read> Entries<'_, R> {
    /// The next entry's tag and bytes; its length is held against what such an entry may have.
    fn next(&mut self) -> Result<(u8, Vec<u8>), Bad> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(Bad::Stage(StageError::Interrupted));
        }
        let mut head = [0; 9];
        self.stream.read_exact(&mut head)?;
        let mut len = [0; 8];
        len.copy_from_slice(&head[1..]);
        let (tag, len) = (head[0], u64::from_le_bytes(len));
        let limit = match tag {
            tag::PAGE => PAGE_SIZE as u64,
            tag::END | tag::BOOT_KEY => 32,
            tag::RECORDS | tag::BOOT_RECORDS => 2 * (64 << 10) + RECORD_LIMIT as u64,
            tag::KERNEL | tag::INITRAMFS => 1 << 20,
            // Every page once, with its index and hash, and the machine's state.
            tag::BOOT | tag::KEYFRAME => ENTRY_LIMIT.min(self.memory / PAGE_SIZE as u64 * 48 + (1 << 20)),
            _ => ENTRY_LIMIT,
        };
        if len > limit {
            return refuse(format!("an entry of kind {tag} claims {len} bytes"));
        }
        // Grows with what arrives, not with what is claimed.
        let mut bytes = Vec::new();
        (&mut self.stream).take(len).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != len {
            return refuse("it is cut short");
        }
        if tag == tag::END {
            if bytes != self.hasher.finalize().as_bytes() {
                return refuse("its checksum does not match");
            }
            if self.stream.read(&mut [0])? != 0 {
                return refuse("it goes on after its end");
            }
        }
        self.hasher.update(&head).update(&bytes);
        Ok((tag, bytes))
    }

    fn decode<T: serde::de::DeserializeOwned>(&self, kind: envelope::Kind, bytes: &[u8]) -> Result<T, Bad> {
        envelope::decode(kind, bytes, self.path).map_err(|error| {
            Bad::Refused(match error {
                ReadError::Damaged { what, .. } => format!("its {} is damaged ({what})", kind.name),
                ReadError::Foreign { .. } => format!("its {} is none", kind.name),
                ReadError::Version { found, known, .. } => {
                    format!("its {} has format version {found}, and this program reads {known}", kind.name)
                }
                ReadError::Io { source, .. } => source.to_string(),
            })
        })
    }
}

struct Import<'h, 'p, R: Read> {
    home: &'h Home,
    entries: Entries<'p, R>,
    open: Option<OpenRun>,
}

impl<R: Read> Import<'_, '_, R> {
    fn expect<T: serde::de::DeserializeOwned>(&mut self, tag: u8, kind: envelope::Kind) -> Result<T, Bad> {
        match self.entries.next()? {
            (found, bytes) if found == tag => self.entries.decode(kind, &bytes),
            (found, _) => refuse(format!("entry {found} stands where {tag} should")),
        }
    }

    fn run(&mut self) -> Result<Imported, Bad> {
        let spec: Spec = self.expect(tag::SPEC, spec::FILE)?;
        if spec.memory > 64 << 30 {
            return refuse("no machine has that much memory");
        }
        self.entries.memory = spec.memory;
        let outcome: Outcome = self.expect(tag::OUTCOME, outcome::FILE)?;
        if outcome.steps > STEPS_LIMIT || outcome.started.is_some_and(|started| started > outcome.steps) {
            return refuse("its outcome has impossible steps");
        }
        let recording: Recording = self.expect(tag::RECORDING, outcome::RECORDING)?;
        let inputs: InputLog = self.expect(tag::INPUTS, input::FILE)?;
        let sealed = (!inputs.is_empty()).then(|| inputs.hash());
        if sealed != spec.outside {
            return refuse("its input log is not the one its spec names");
        }
        if self.home.finished(&spec).is_some_and(|(_, before)| before != outcome) {
            return refuse(format!("run {} is in this home with another outcome", spec.id()));
        }
        // What is in the store already is looked at: importing a run again mends it.
        self.home.pages().doubt();
        self.home.refuse_newer(spec.id())?;
        let open = self.home.begin(&spec.closed())?;
        let dir = open.dir().path().to_owned();
        self.open = Some(open);
        // At once: an import that is killed half-way is no run.
        durable::replace(&dir.join("imported"), b"this run came from another home\n")?;
        let mut writer = TraceWriter::create(&dir)?;
        let mut boot = BootParts::default();
        let mut steps = 0;
        // What is kept of a file grows with the pages it names, and those are bounded: keyframes go to disk at once.
        let mut keyframes = BTreeSet::new();
        let mut keyframe_bytes = 0;
        let mut wanted: BTreeSet<PageHash> = BTreeSet::new();
        want(inputs.pages(), &mut wanted)?;
        let mut images: Option<Kept> = None;
        let mut blobs = [Vec::new(), Vec::new()];
        let mut last = tag::INPUTS;
        loop {
            let (tag, bytes) = self.entries.next()?;
            if tag < last {
                return refuse("its entries are out of order");
            }
            last = tag;
            match tag {
                tag::RECORDS => {
                    let left = outcome.records.saturating_sub(writer.records());
                    add_records(&mut writer, &bytes, left, &mut steps)?;
                    if steps > outcome.steps {
                        return refuse("its records go on after its end");
                    }
                }
                tag::BOOT_KEY if boot.key.is_none() => {
                    boot.key = <[u8; 32]>::try_from(&bytes[..]).ok().map(Content);
                }
                tag::BOOT if boot.keyframe.is_none() => {
                    let keyframe: Keyframe = self.entries.decode(keyframe::FILE, &bytes)?;
                    want_all(&keyframe, "boot", &mut wanted)?;
                    boot.begin(&dir.join("boot"), keyframe)?;
                }
                tag::BOOT_RECORDS => boot.add(&bytes)?,
                tag::KEYFRAME => {
                    let keyframe: Keyframe = self.entries.decode(keyframe::FILE, &bytes)?;
                    if keyframes.last().is_some_and(|last| *last >= keyframe.step) {
                        return refuse("its keyframes are out of order or twice there");
                    }
                    if keyframe.step > outcome.steps {
                        return refuse("it has a keyframe after its end");
                    }
                    if let Base::Step(step) = keyframe.base
                        && !keyframes.contains(&step)
                    {
                        return refuse("a keyframe builds on one that is not there");
                    }
                    keyframes.insert(keyframe.step);
                    keyframe_bytes += bytes.len() as u64;
                    if keyframes.len() > KEYFRAMES_LIMIT || keyframe_bytes > KEYFRAME_BYTES_LIMIT {
                        return refuse("it has more keyframes than any run");
                    }
                    want_all(&keyframe, &spec.id().to_string(), &mut wanted)?;
                    let path = keyframe::dir_of(&dir).join(keyframe::file_name(keyframe.step));
                    envelope::write(keyframe::FILE, &path, &keyframe)?;
                }
                tag::IMAGES if images.is_none() => {
                    let kept: Kept = self.entries.decode(kept::FILE, &bytes)?;
                    if kept.images.keys().any(|image| *image as usize >= spec.images.len()) {
                        return refuse("it holds an image its spec has not");
                    }
                    want(kept.pages(), &mut wanted)?;
                    images = Some(kept);
                }
                tag::KERNEL | tag::INITRAMFS => {
                    let blob = &mut blobs[usize::from(tag - tag::KERNEL)];
                    if blob.len() + bytes.len() > BLOB_LIMIT {
                        return refuse("its kernel or initramfs is too large");
                    }
                    blob.extend_from_slice(&bytes);
                }
                tag::PAGE => {
                    let Ok(page) = <&[u8; PAGE_SIZE]>::try_from(&bytes[..]) else {
                        return refuse("a page has another size");
                    };
                    // Each page once, and none that nothing names: so there are no more than were asked for.
                    let hash = PageHash::of(page);
                    if !wanted.remove(&hash) {
                        return refuse(format!("page {hash} is there twice or belongs to nothing"));
                    }
                    self.home.pages().put_named(hash, page)?;
                }
                tag::END => break,
                _ => return refuse(format!("entry {tag} is unknown or twice there")),
            }
        }
        if writer.records() != outcome.records || writer.hash() != outcome.trace_hash {
            return refuse("its trace is not the one its outcome names");
        }
        writer.sync()?;
        let replayable = boot.keyframe.is_some() || !keyframes.is_empty() || images.is_some();
        if replayable {
            if let Some(missing) = wanted.first() {
                return refuse(format!("page {missing} is missing"));
            }
            self.home.pages().sync()?;
            self.keep_blobs(&spec, &blobs)?;
            boot.finish(&spec, &recording)?;
        }
        if let Some(images) = images.filter(|images| !images.images.is_empty()) {
            envelope::write(kept::FILE, &dir.join("images"), &images)?;
        }
        let Some(open) = self.open.take() else { return refuse("it has no run") };
        Ok(match open.finish(&inputs, &outcome, &recording)? {
            Finished::New(run) | Finished::Replaced(run) => Imported { run, known: false },
            Finished::Same(run) => Imported { run, known: true },
        })
    }

    fn keep_blobs(&self, spec: &Spec, blobs: &[Vec<u8>; 2]) -> Result<(), Bad> {
        for (blob, content, what) in
            [(&blobs[0], spec.kernel, "kernel"), (&blobs[1], spec.initramfs, "initramfs")]
        {
            if *blake3::hash(blob).as_bytes() != content.0 {
                return refuse(format!("its {what} is not the one its spec names"));
            }
            self.home.keep_bytes(blob)?;
        }
        Ok(())
    }
}

/// More steps than a run makes in a year.
const STEPS_LIMIT: u64 = 1 << 48;

/// The boot keyframe as it arrives.
#[derive(Default)]
struct BootParts {
    key: Option<Content>,
    keyframe: Option<Keyframe>,
    writer: Option<TraceWriter>,
    /// Of its records so far.
    steps: u64,
}

impl BootParts {
    fn begin(&mut self, dir: &Path, keyframe: Keyframe) -> Result<(), Bad> {
        durable::create_dir(dir)?;
        envelope::write(keyframe::FILE, &dir.join(keyframe::file_name(keyframe.step)), &keyframe)?;
        self.writer = Some(TraceWriter::create(dir)?);
        self.keyframe = Some(keyframe);
        Ok(())
    }

    fn add(&mut self, chunk: &[u8]) -> Result<(), Bad> {
        let (Some(writer), Some(keyframe)) = (&mut self.writer, &self.keyframe) else {
            return refuse("it has records of a boot and no boot keyframe");
        };
        let left = keyframe.records.saturating_sub(writer.records());
        add_records(writer, chunk, left, &mut self.steps)
    }

    fn finish(self, spec: &Spec, recording: &Recording) -> Result<(), Bad> {
        let (Some(key), Some(keyframe), Some(mut writer)) = (self.key, self.keyframe, self.writer) else {
            return refuse("its boot keyframe is missing");
        };
        if Some(key) != recording.boot || key != boot::key(spec, recording.engine) {
            return refuse("its boot keyframe is of another kernel or machine");
        }
        if keyframe.base != Base::Full || keyframe.memory != spec.memory {
            return refuse("its boot keyframe makes no sense");
        }
        if writer.records() != keyframe.records {
            return refuse("its boot's trace is not complete");
        }
        Ok(writer.sync()?)
    }
}

/// Checks a keyframe and asks for its pages.
fn want_all(keyframe: &Keyframe, run: &str, wanted: &mut BTreeSet<PageHash>) -> Result<(), Bad> {
    keyframe::check(keyframe, run, keyframe.step).map_err(|error| Bad::Refused(error.to_string()))?;
    want(keyframe.pages.iter().map(|at| at.hash), wanted)
}

/// Asks for pages.
fn want(pages: impl Iterator<Item = PageHash>, wanted: &mut BTreeSet<PageHash>) -> Result<(), Bad> {
    for hash in pages.filter(|hash| !hash.is_zero()) {
        wanted.insert(hash);
        if wanted.len() > PAGES_LIMIT {
            return refuse(format!("it names more than {PAGES_LIMIT} different pages"));
        }
    }
    Ok(())
}

/// Adds the records of a chunk, `left` at most, which go on from step `steps`.
fn add_records(writer: &mut TraceWriter, chunk: &[u8], left: u64, steps: &mut u64) -> Result<(), Bad> {
    let mut rest = chunk;
    let mut left = left;
    while !rest.is_empty() {
        let Some(header) = rest.get(..RECORD_HEADER) else { return refuse("a record is cut short") };
        let header: RecordHeader = bytemuck::pod_read_unaligned(header);
        let (len, payload) = (header.len as usize, header.payload_len as usize);
        if len != (RECORD_HEADER + payload.min(RECORD_LIMIT)).next_multiple_of(8)
            || len > rest.len()
            || len > RECORD_LIMIT
        {
            return refuse("a record has an impossible length");
        }
        if left == 0 {
            return refuse("it has more records than its outcome says");
        }
        left -= 1;
        if header.step < *steps {
            return refuse("its records are out of order");
        }
        *steps = header.step;
        writer.add(&header, &rest[RECORD_HEADER..RECORD_HEADER + payload])?;
        rest = &rest[len..];
    }
    Ok(())
}
