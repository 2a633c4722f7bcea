//! Writing an exported run.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use super::{ArchiveError, MAGIC, VERSION, tag};
use crate::{
    durable, envelope,
    error::StageError,
    home::{Home, RunDir},
    input, keyframe, outcome, spec,
    store::{PAGE_SIZE, PageHash},
    trace::{Record, TraceReader},
};

/// What to put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Enough for `log`, `events`, `ps`, `threads`, `diff`.
    View,
    /// Also kernel, boot keyframe, keyframes and logged input: enough to replay and to look inside.
    Replayable,
}

/// Records gathered to this many bytes an entry.
const CHUNK: usize = 64 << 10;

struct Out<W: Write> {
    stream: W,
    hasher: blake3::Hasher,
}

impl<W: Write> Out<W> {
    fn entry(&mut self, tag: u8, bytes: &[u8]) -> io::Result<()> {
        let mut head = [tag; 9];
        head[1..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.hasher.update(&head).update(bytes);
        self.stream.write_all(&head)?;
        self.stream.write_all(bytes)
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
        if chunk.is_empty() { Ok(()) } else { Ok(self.entry(tag, &chunk)?) }
    }
}

enum WriteFailed {
    Io(io::Error),
    Stage(StageError),
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

/// Writes `run` to `path`, which appears only when it is whole.
pub fn export(home: &Home, run: &RunDir, path: &Path, kind: Kind) -> Result<(), ArchiveError> {
    let io = |what| {
        let path = path.to_owned();
        move |source| ArchiveError::Io { what, path, source }
    };
    if !run.is_finished() || run.outcome().map_err(StageError::from)?.is_none() {
        return Err(ArchiveError::Unfinished(run.id()));
    }
    let temporary = durable::temporary_beside(path);
    let written = (|| {
        let file = File::create_new(&temporary)?;
        let mut buffered = BufWriter::new(file);
        buffered.write_all(&MAGIC)?;
        buffered.write_all(&VERSION.to_le_bytes())?;
        let stream = zstd::stream::write::Encoder::new(buffered, 3)?;
        let mut out = Out { stream, hasher: blake3::Hasher::new() };
        fill(home, run, kind, &mut out)?;
        let hash = *out.hasher.finalize().as_bytes();
        out.entry(tag::END, &hash)?;
        let file = out.stream.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        Ok(())
    })();
    match written {
        Ok(()) => std::fs::rename(&temporary, path).map_err(io("write")),
        Err(error) => {
            let _ = std::fs::remove_file(&temporary);
            Err(match error {
                WriteFailed::Io(source) => io("write")(source),
                WriteFailed::Stage(error) => error.into(),
            })
        }
    }
}

fn fill<W: Write>(home: &Home, run: &RunDir, kind: Kind, out: &mut Out<W>) -> Result<(), WriteFailed> {
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
    out.entry(tag::INPUTS, &envelope::encode(input::FILE, &inputs))?;
    out.records(tag::RECORDS, &run.trace().map_err(StageError::from)?)?;
    if kind == Kind::View {
        return Ok(());
    }
    let mut pages: BTreeSet<PageHash> = inputs.pages().collect();
    if let Some(boot) = recording.and_then(|recording| recording.boot) {
        let dir = home.boot_dir(boot);
        for step in keyframe::list(&dir) {
            let keyframe = keyframe::read(&dir.join(keyframe::file_name(step)), "boot", step)
                .map_err(StageError::from)?;
            out.entry(tag::BOOT_KEY, &boot.0)?;
            out.entry(tag::BOOT, &envelope::encode(keyframe::FILE, &keyframe))?;
            pages.extend(keyframe.pages.iter().map(|at| at.hash));
            out.records(tag::BOOT_RECORDS, &TraceReader::open(&dir).map_err(StageError::from)?)?;
        }
    }
    let id = run.id().to_string();
    for step in keyframe::list(&run.keyframes()) {
        let path = run.keyframes().join(keyframe::file_name(step));
        let keyframe = keyframe::read(&path, &id, step).map_err(StageError::from)?;
        out.entry(tag::KEYFRAME, &envelope::encode(keyframe::FILE, &keyframe))?;
        pages.extend(keyframe.pages.iter().map(|at| at.hash));
    }
    for (tag, what, content) in
        [(tag::KERNEL, "kernel", spec.kernel), (tag::INITRAMFS, "initramfs", spec.initramfs)]
    {
        for piece in home.blob(what, content).map_err(StageError::from)?.chunks(1 << 20) {
            out.entry(tag, piece)?;
        }
    }
    let mut content = [0; PAGE_SIZE];
    for hash in pages.into_iter().filter(|hash| !hash.is_zero()) {
        home.pages().get(hash, &mut content).map_err(StageError::from)?;
        out.entry(tag::PAGE, &content)?;
    }
    Ok(())
}
