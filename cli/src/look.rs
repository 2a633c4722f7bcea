//! What looks into a run needs beside the machine: files of its root, sources, kernel symbols.

use std::{
    collections::BTreeSet,
    fs::File,
    io::Read as _,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Result;
use debug::{
    look::Files,
    sources::{ReadSource, Sources, plain},
    symbols::KernelSymbols,
};
use image::lookup::{Lookup, LookupError};
use rewind_platform::record::{REC_OPEN, REC_RENAME, REC_UNLINK};
use run::{
    home::Home,
    seek::{self, Timeline},
    spec::ImageSpec,
    trace::TraceReader,
};
use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};

use crate::{context, guest, path_text, root};

/// Largest file read.
const MOST_BYTES: u64 = 1 << 30;
/// Largest source file read.
const MOST_SOURCE: u64 = 16 << 20;

/// Files of the root a run had.
#[derive(Clone)]
pub(crate) struct RunFiles {
    /// As the run had it, as far as it is kept with the run.
    image: Arc<Mutex<Option<Lookup>>>,
    /// The folder of this machine it was, if it was one.
    directory: Option<PathBuf>,
    /// The image it was otherwise, opened when it is needed.
    whole: Arc<Mutex<Whole>>,
    /// What this machine's files must be to be shown as those of the run.
    here: Here,
    /// Files that the job itself wrote, moved or removed, found when a source is wanted: how they were when a program was made
    /// from them cannot be told.
    written: Arc<Mutex<Option<BTreeSet<Vec<u8>>>>>,
    trace: Option<Arc<TraceReader>>,
}

/// Which files of this machine a run can have had.
#[derive(Clone, Copy)]
enum Here {
    /// Any: the runs are yet to come.
    Any,
    /// Those that have not changed since this time, seconds and nanoseconds of the host's clock. It goes into no report.
    Before(i64, i64),
    /// None: the run is another machine's.
    None,
}

/// An image that may have more than is kept with a run.
enum Whole {
    /// Where it was, and what it must be.
    Unopened { home: PathBuf, source: String, spec: ImageSpec },
    /// There, or not.
    Opened(Option<Lookup>),
}

impl RunFiles {
    pub(crate) fn of(timeline: &Timeline<'_>) -> Result<RunFiles> {
        let (home, run) = (timeline.home(), timeline.run());
        let source = run.recording()?.map(|recording| recording.source).unwrap_or_default();
        let again = |spec: &ImageSpec, source: &str| context::again(home, spec, source);
        let images = seek::open_images(home, run, timeline.spec(), &source, &again)?;
        let image = images.into_iter().next().and_then(|image| Lookup::new(image).ok());
        // What an imported run calls its source is a path of another machine: nothing of this one is its.
        let here = if run.is_imported() { "" } else { &source };
        let mut files = RunFiles::new(image, root::is_host(here), here);
        // The lock is made when the recording begins, and never written again. What a fork did not read itself its eldest
        // ancestor may have.
        let mut eldest = Some(run.path().join("lock"));
        let mut parent = run.recording()?.and_then(|recording| recording.parent);
        // What an imported run calls its parent is anybody's word, and may lead round in a circle.
        let mut seen = BTreeSet::from([run.id()]);
        while let Some((id, _)) = parent.filter(|(id, _)| seen.insert(*id)) {
            let above = home.run(id).ok();
            eldest = above.as_ref().map(|above| above.path().join("lock"));
            parent = match above.map(|above| above.recording()) {
                Some(Ok(recording)) => recording.and_then(|recording| recording.parent),
                _ => None,
            };
        }
        let began = eldest.and_then(|lock| std::fs::metadata(lock).ok());
        files.here = match began.filter(|_| !run.is_imported()) {
            Some(began) => Here::Before(began.mtime(), began.mtime_nsec()),
            None => Here::None,
        };
        files.trace = Some(Arc::new(run.trace()?));
        if let (None, Some(spec), false) = (&files.directory, timeline.spec().images.first(), here.is_empty())
        {
            let (home, spec) = (home.path().to_owned(), spec.clone());
            files.whole = Arc::new(Mutex::new(Whole::Unopened { home, source, spec }));
        }
        Ok(files)
    }

    /// Of a root that runs are about to have.
    pub(crate) fn of_root(root: &run::root::Root) -> RunFiles {
        let image = (root.open)().ok().and_then(|image| Lookup::new(image).ok());
        RunFiles::new(image, root.logged, &root.source)
    }

    fn new(image: Option<Lookup>, host: bool, source: &str) -> RunFiles {
        let directory = path_text::read(if host { "/" } else { source });
        let directory = Some(directory).filter(|directory| directory.is_dir());
        let whole = Arc::new(Mutex::new(Whole::Opened(None)));
        let (image, written) = (Arc::new(Mutex::new(image)), Arc::default());
        RunFiles { image, directory, whole, here: Here::Any, written, trace: None }
    }

    /// A file of the root, as the run had it; what is not kept of it with the run is read now, if it has not changed since.
    pub(crate) fn read(&self, path: &[u8]) -> Option<Vec<u8>> {
        let mut image = self.image.lock().unwrap_or_else(PoisonError::into_inner);
        match image.as_mut()?.file(path, MOST_BYTES) {
            Ok(content) => Some(content),
            Err(LookupError::Read(_)) => match &self.directory {
                Some(directory) => self.file_in(directory, path, MOST_BYTES),
                None => self.whole.lock().unwrap_or_else(PoisonError::into_inner).file(path),
            },
            Err(_) => None,
        }
    }

    /// A file that is kept with the run.
    pub(crate) fn kept(&self, path: &[u8]) -> Option<Vec<u8>> {
        self.image.lock().unwrap_or_else(PoisonError::into_inner).as_mut()?.file(path, MOST_SOURCE).ok()
    }

    /// A file of this machine as it is now, not of the root.
    pub(crate) fn now(path: &[u8]) -> Option<Vec<u8>> {
        content_in(Path::new("/"), path, MOST_SOURCE, Here::Any)
    }

    /// The folder of this machine the root was, if it was one.
    pub(crate) fn directory(&self) -> Option<PathBuf> {
        self.directory.clone()
    }

    /// A file of that folder as it is now.
    pub(crate) fn beside(&self, path: &[u8]) -> Option<Vec<u8>> {
        content_in(self.directory.as_deref()?, path, MOST_BYTES, Here::Any)
    }

    fn file_in(&self, top: &Path, path: &[u8], most: u64) -> Option<Vec<u8>> {
        content_in(top, path, most, self.here)
    }

    /// For symbols.
    pub(crate) fn files(&self) -> Files {
        let own = self.clone();
        Files::new(Box::new(move |path| own.read(path)))
    }

    /// A source file as it was: of the root, else of this machine, if its name is one of a source.
    pub(crate) fn source(&self, path: &str) -> Option<Vec<u8>> {
        if self.wrote(path.as_bytes()) {
            return None;
        }
        self.read(path.as_bytes()).or_else(|| {
            let kind = Path::new(path).extension()?.to_str()?;
            const SOURCES: [&str; 22] = [
                "c", "h", "cc", "cpp", "cxx", "c++", "C", "hh", "hpp", "hxx", "rs", "go", "s", "S", "f90",
                "f", "d", "zig", "ml", "inc", "y", "l",
            ];
            let known = SOURCES.contains(&kind);
            known.then(|| self.file_in(Path::new("/"), path.as_bytes(), MOST_SOURCE))?
        })
    }

    /// Did the job write, move or remove this file?
    fn wrote(&self, path: &[u8]) -> bool {
        let Some(trace) = &self.trace else { return false };
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let written = written.get_or_insert_with(|| written_in(trace));
        let path = plain(path);
        // A directory that was moved has taken all in it along.
        let ends = (1..=path.len()).filter(|end| path.get(*end).is_none_or(|byte| *byte == b'/'));
        ends.into_iter().any(|end| written.contains(&path[..end]))
    }

    pub(crate) fn sources(&self) -> Sources<'static> {
        let own = self.clone();
        let read: ReadSource<'static> = Box::new(move |path| own.source(path));
        Sources::new(read)
    }
}

impl Whole {
    fn file(&mut self, path: &[u8]) -> Option<Vec<u8>> {
        if let Whole::Unopened { home, source, spec } = self {
            let opened = Home::open(home).ok().and_then(|home| context::again(&home, spec, source).ok());
            let opened = opened.filter(|root| root.spec == *spec).and_then(|root| (root.open)().ok());
            *self = Whole::Opened(opened.and_then(|image| Lookup::new(image).ok()));
        }
        match self {
            Whole::Opened(Some(lookup)) => lookup.file(path, MOST_BYTES).ok(),
            _ => None,
        }
    }
}

/// Paths that the job wrote, moved or removed.
fn written_in(trace: &TraceReader) -> BTreeSet<Vec<u8>> {
    let mut written = BTreeSet::new();
    for record in trace.iter().map_while(Result::ok) {
        if matches!(record.header.kind, REC_OPEN | REC_RENAME | REC_UNLINK) {
            written.extend(record.payload.split(|byte| *byte == 0).map(plain));
        }
    }
    written
}

/// A regular file below `top`, as a program with that root sees it, if it is one that the run can have had.
fn content_in(top: &Path, path: &[u8], most: u64, here: Here) -> Option<Vec<u8>> {
    if matches!(here, Here::None) {
        return None;
    }
    let top = open(top, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let path = std::ffi::OsStr::from_bytes(path);
    let file = File::from(openat2(&top, path, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()?);
    let found = file.metadata().ok().filter(|found| found.is_file() && found.len() <= most)?;
    if let Here::Before(seconds, nanos) = here
        && (found.ctime(), found.ctime_nsec()) > (seconds, nanos)
    {
        return None;
    }
    let mut content = Vec::with_capacity(found.len() as usize);
    file.take(most).read_to_end(&mut content).ok()?;
    Some(content)
}

/// Names of the guest kernel's functions, if the run's kernel is the one built here.
pub(crate) fn kernel_symbols(timeline: &Timeline<'_>) -> Option<KernelSymbols> {
    let dir = guest::found().ok()?;
    let map = std::fs::read_to_string(dir.join("System.map")).ok()?;
    let vmlinux = std::fs::read(dir.join("vmlinux")).ok()?;
    let same = run::spec::Content(*blake3::hash(&vmlinux).as_bytes()) == timeline.spec().kernel;
    same.then(|| KernelSymbols::parse(&map))
}
