//! Writing an exported run.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use super::{
    ArchiveError, ENTRY_LIMIT, KEYFRAME_BYTES_LIMIT, KEYFRAMES_LIMIT, MAGIC, PAGES_LIMIT, VERSION,
    images::Images, tag, target,
};
use crate::{
    boot::{self, Kernel},
    durable, envelope,
    error::StageError,
    home::{Home, RunDir},
    input, kept, keyframe, outcome,
    seek::{self, FindImage},
    spec,
    store::{PAGE_SIZE, PageHash},
    trace::{Record, TraceReader},
};

/// What to put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Enough for `log`, `events`, `ps`, `threads`, `diff`.
    View,
    /// Also kernel, boot keyframe, keyframes, logged input and what it read of its images: enough to replay.
    Replayable,
    /// Also all else of its images: enough to go on otherwise, in a fork or a shell.
    Whole,
}

/// Records gathered to this many bytes an entry.
const CHUNK: usize = 64 << 10;

struct Out<'i, W: Write> {
    stream: W,
    hasher: blake3::Hasher,
    interrupted: &'i AtomicBool,
}

impl<W: Write> Out<'_, W> {
    fn entry(&mut self, tag: u8, bytes: &[u8]) -> Result<(), WriteFailed> {
        go_on(self.interrupted)?;
        let mut head = [tag; 9];
        head[1..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.hasher.update(&head).update(bytes);
        self.stream.write_all(&head)?;
        Ok(self.stream.write_all(bytes)?)
    }

    /// An entry that a reader holds in memory.
    fn limited(&mut self, run: &RunDir, tag: u8, bytes: &[u8]) -> Result<(), WriteFailed> {
        if bytes.len() as u64 > ENTRY_LIMIT {
            let what = "one of its lists of pages is longer than 128 MiB";
            return Err(WriteFailed::Archive(ArchiveError::TooLarge { id: run.id(), what }));
        }
        self.entry(tag, bytes)
    }

    fn records(&mut self, tag: u8, trace: &TraceReader) -> Result<(), WriteFailed> {
        let mut chunk = Vec::with_capacity(CHUNK * 2);
        for record in trace.iter() {
            let Record { header, payload } = record.map_err(StageError::from)?;
            chunk.extend_from_slice(bytemuck::bytes_of(&header));
            chunk.extend_from_slice(&payload);
            chunk.resize(chunk.len().next_multiple_of(8), 0);
            if chunk.len() >= CHUNK {
                self.entry(tag, &chunk)?;
                chunk.clear();
            }
        }
        if chunk.is_empty() { Ok(()) } else { self.entry(tag, &chunk) }
    }
}

/// Not after Ctrl-C.
pub(super) fn go_on(interrupted: &AtomicBool) -> Result<(), WriteFailed> {
    match interrupted.load(Ordering::Relaxed) {
        true => Err(StageError::Interrupted.into()),
        false => Ok(()),
    }
}

pub(super) enum WriteFailed {
    Io(io::Error),
    Stage(StageError),
    Archive(ArchiveError),
}

impl From<io::Error> for WriteFailed {
    fn from(error: io::Error) -> Self {
        WriteFailed::Io(error)
    }
}

impl From<StageError> for WriteFailed {
    fn from(error: StageError) -> Self {
        WriteFailed::Stage(error)
    }
}

impl WriteFailed {
    fn told(self, path: &Path) -> ArchiveError {
        match self {
            WriteFailed::Io(source) => ArchiveError::Io { what: "write", path: path.to_owned(), source },
            WriteFailed::Stage(error) => error.into(),
            WriteFailed::Archive(error) => error,
        }
    }
}

/// Writes `run` to `path`, or where that leads as a symbolic link; the file appears only when it is whole. Nothing is left
/// of it once `interrupted` is set.
pub fn export(
    home: &Home,
    run: &RunDir,
    path: &Path,
    kind: Kind,
    find: FindImage<'_>,
    notice: &dyn Fn(&str),
    interrupted: &AtomicBool,
) -> Result<(), ArchiveError> {
    if !run.is_finished() || run.outcome().map_err(StageError::from)?.is_none() {
        return Err(ArchiveError::Unfinished(run.id()));
    }
    if kind != Kind::View && seek::is_view(run) {
        return Err(StageError::ViewOnly(run.id()).into());
    }
    let trace = seek::whole_trace(run)?;
    let target = target::resolve(path)?;
    // What may take long or fail by itself, before anything is written.
    if kind != Kind::View {
        have_boot(home, run, notice)?;
    }
    let images = match kind {
        Kind::View => None,
        _ => Some(Images::open(home, run, kind, find, interrupted).map_err(|error| error.told(path))?),
    };
    let temporary = durable::temporary_beside(&target);
    let written = (|| {
        let file = File::create_new(&temporary)?;
        let mut buffered = BufWriter::new(file);
        buffered.write_all(&MAGIC)?;
        buffered.write_all(&VERSION.to_le_bytes())?;
        let stream = zstd::stream::write::Encoder::new(buffered, 3)?;
        let mut out = Out { stream, hasher: blake3::Hasher::new(), interrupted };
        fill(home, run, &trace, images, &mut out)?;
        let hash = *out.hasher.finalize().as_bytes();
        out.entry(tag::END, &hash)?;
        let file = out.stream.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        go_on(interrupted)?;
        Ok(std::fs::rename(&temporary, &target)?)
    })();
    written.map_err(|error: WriteFailed| {
        // The error that matters is the first one.
        let _ = std::fs::remove_file(&temporary);
        error.told(path)
    })
}

/// Sees to the boot keyframe a run was recorded over: one that is damaged or gone is made again.
fn have_boot(home: &Home, run: &RunDir, notice: &dyn Fn(&str)) -> Result<(), StageError> {
    let Some(recording) = run.recording()? else { return Ok(()) };
    let spec = run.spec()?;
    // An imported run's own one is not for others, and cannot be made.
    if keyframe::list(&run.own_boot()).is_empty()
        && recording.boot == Some(boot::key(&spec, recording.engine))
    {
        boot::ensure(home, &spec, recording.engine, &|| Kernel::of(home, &spec), notice)?;
    }
    Ok(())
}

fn fill<W: Write>(
    home: &Home,
    run: &RunDir,
    trace: &TraceReader,
    images: Option<Images<'_>>,
    out: &mut Out<'_, W>,
) -> Result<(), WriteFailed> {
    let spec = run.spec().map_err(StageError::from)?;
    let inputs = run.inputs().map_err(StageError::from)?;
    let outcome = run.outcome().map_err(StageError::from)?;
    let recording = run.recording().map_err(StageError::from)?;
    out.entry(tag::SPEC, &envelope::encode(spec::FILE, &spec))?;
    if let Some(outcome) = &outcome {
        out.entry(tag::OUTCOME, &envelope::encode(outcome::FILE, outcome))?;
    }
    if let Some(recording) = &recording {
        out.entry(tag::RECORDING, &envelope::encode(outcome::RECORDING, recording))?;
    }
    out.limited(run, tag::INPUTS, &envelope::encode(input::FILE, &inputs))?;
    out.records(tag::RECORDS, trace)?;
    let Some(mut images) = images else { return Ok(()) };
    let mut pages: BTreeSet<PageHash> = inputs.pages().collect();
    if let Some(boot) = recording.and_then(|recording| recording.boot) {
        let own = run.own_boot();
        let dir = if keyframe::list(&own).is_empty() { home.boot_dir(boot) } else { own };
        let Some(step) = keyframe::list(&dir).pop() else {
            return Err(WriteFailed::Archive(ArchiveError::BootGone(run.id())));
        };
        let keyframe =
            keyframe::read(&dir.join(keyframe::file_name(step)), "boot", step).map_err(StageError::from)?;
        out.entry(tag::BOOT_KEY, &boot.0)?;
        out.limited(run, tag::BOOT, &envelope::encode(keyframe::FILE, &keyframe))?;
        pages.extend(keyframe.pages.iter().map(|at| at.hash));
        out.records(tag::BOOT_RECORDS, &TraceReader::open(&dir).map_err(StageError::from)?)?;
    }
    let id = run.id().to_string();
    let mut keyframe_bytes = 0;
    for (before, step) in keyframe::list(&run.keyframes()).into_iter().enumerate() {
        let path = run.keyframes().join(keyframe::file_name(step));
        let keyframe = keyframe::read(&path, &id, step).map_err(StageError::from)?;
        let encoded = envelope::encode(keyframe::FILE, &keyframe);
        keyframe_bytes += encoded.len() as u64;
        if before >= KEYFRAMES_LIMIT || keyframe_bytes > KEYFRAME_BYTES_LIMIT {
            let what = "it has more than a million keyframes or 4 GiB of them: `rewind prune` drops them";
            return Err(WriteFailed::Archive(ArchiveError::TooLarge { id: run.id(), what }));
        }
        out.limited(run, tag::KEYFRAME, &encoded)?;
        pages.extend(keyframe.pages.iter().map(|at| at.hash));
    }
    for (tag, what, content) in
        [(tag::KERNEL, "kernel", spec.kernel), (tag::INITRAMFS, "initramfs", spec.initramfs)]
    {
        for piece in home.blob(what, content).map_err(StageError::from)?.chunks(1 << 20) {
            out.entry(tag, piece)?;
        }
    }
    let (kept, places) = images.list()?;
    out.limited(run, tag::IMAGES, &envelope::encode(kept::FILE, &kept))?;
    pages.extend(kept.pages());
    if pages.len() > PAGES_LIMIT {
        let what = "it has more than 16 GiB of different pages";
        return Err(WriteFailed::Archive(ArchiveError::TooLarge { id: run.id(), what }));
    }
    let mut content = [0; PAGE_SIZE];
    for hash in pages.into_iter().filter(|hash| !hash.is_zero()) {
        match places.get(&hash) {
            Some(place) => images.read(*place, &mut content)?,
            None => home.pages().get(hash, &mut content).map_err(StageError::from)?,
        }
        out.entry(tag::PAGE, &content)?;
    }
    Ok(())
}
