//! The packs on disk: their index in memory, the one this process writes, reading back.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, TryLockError},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    PAGE_SIZE, PageError, PageHash,
    index::{self, ENTRY, HEADER, Location},
};
use crate::durable::{self, Appender};

/// A pack that has reached this many bytes is closed.
const PACK_LIMIT: u64 = 1 << 30;
/// Appends are gathered to this many bytes.
const GATHER: usize = 1 << 20;

#[expect(clippy::disallowed_types, reason = "looked up by key only, never iterated: order cannot leak")]
type PageMap = std::collections::HashMap<PageHash, Location>;

pub(super) struct Packs {
    dir: PathBuf,
    known: PageMap,
    /// Bytes of each index read so far.
    seen: BTreeMap<u32, u64>,
    files: BTreeMap<u32, Arc<File>>,
    loaded: bool,
    writer: Option<Writer>,
    /// Packs up to this number are not written to.
    closed: u32,
    /// Why pages that somebody has put were dropped since the last sync, which has to say so.
    lost: Option<String>,
    /// Packs of other processes whose pages somebody here relies on since the last sync.
    relied_on: BTreeSet<u32>,
    /// Bytes of their indexes that are known to be on the disk.
    on_disk: BTreeMap<u32, u64>,
}

struct Writer {
    number: u32,
    pack: Appender,
    index: Appender,
    /// Bytes of the pack that the index may know of.
    synced: u64,
    gathered: Vec<u8>,
    entries: Vec<u8>,
    compressor: zstd::bulk::Compressor<'static>,
}

pub(super) fn pack_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("{number:06}.pack"))
}

pub(super) fn index_path(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("{number:06}.idx"))
}

/// Numbers of the packs that have a pack file, ascending.
pub(super) fn list(dir: &Path) -> Vec<u32> {
    let mut numbers: Vec<u32> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".pack")?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

impl Packs {
    pub(super) fn new(dir: &Path) -> Self {
        Self::new_after(dir, 0)
    }

    /// As `new`, but packs up to number `closed` are left as they are.
    pub(super) fn new_after(dir: &Path, closed: u32) -> Self {
        Packs {
            dir: dir.to_owned(),
            known: PageMap::new(),
            seen: BTreeMap::new(),
            files: BTreeMap::new(),
            loaded: false,
            writer: None,
            closed,
            lost: None,
            relied_on: BTreeSet::new(),
            on_disk: BTreeMap::new(),
        }
    }

    pub(super) fn find(&self, hash: PageHash) -> Option<Location> {
        self.known.get(&hash).copied()
    }

    /// The copy to read of a page that has several.
    pub(super) fn prefer(&mut self, hash: PageHash, at: Location) {
        // It may lie behind what was read of that index.
        self.on_disk.remove(&at.pack);
        self.rely_on(at);
        self.known.insert(hash, at);
    }

    pub(super) fn load_once(&mut self) -> Result<(), PageError> {
        if self.loaded { Ok(()) } else { self.load() }
    }

    /// Reads what the indexes have gained since last time.
    pub(super) fn load(&mut self) -> Result<(), PageError> {
        for number in list(&self.dir) {
            if self.writer.as_ref().is_none_or(|writer| writer.number != number) {
                self.load_index(number)?;
            }
        }
        self.loaded = true;
        Ok(())
    }

    fn load_index(&mut self, number: u32) -> Result<u64, PageError> {
        let from = self.seen.get(&number).copied().unwrap_or(0);
        let Some(scan) = scan_index(&self.dir, number, from)? else { return Ok(from) };
        for (hash, at) in scan.entries {
            self.known.entry(hash).or_insert(at);
        }
        self.seen.insert(number, scan.valid);
        Ok(scan.valid)
    }

    pub(super) fn file(&mut self, number: u32) -> Result<Arc<File>, PageError> {
        if let Some(file) = self.files.get(&number) {
            return Ok(file.clone());
        }
        let path = pack_path(&self.dir, number);
        // Its header is not looked at: each page is checked by its own hash.
        let file = File::open(&path).map_err(|source| PageError::Io { path, source })?;
        Ok(self.files.entry(number).or_insert(Arc::new(file)).clone())
    }

    /// Copies a page that is still gathered in memory; false if it is in the file.
    pub(super) fn read_pending(&self, at: Location, out: &mut [u8]) -> bool {
        let Some(writer) = self.writer.as_ref().filter(|writer| writer.number == at.pack) else {
            return false;
        };
        let Some(start) = at.offset.checked_sub(writer.pack.len()) else { return false };
        let start = start as usize;
        out.copy_from_slice(&writer.gathered[start..start + out.len()]);
        true
    }

    pub(super) fn append(&mut self, hash: PageHash, page: &[u8; PAGE_SIZE]) -> Result<(), PageError> {
        if self.writer.as_ref().is_some_and(|w| w.pack.len() + w.gathered.len() as u64 >= PACK_LIMIT) {
            self.close()?;
        }
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => self.open_writer()?,
        };
        let added = writer.add(hash, page);
        self.writer = Some(writer);
        self.known.insert(hash, added?);
        if self.writer.as_ref().is_some_and(|w| w.gathered.len() >= GATHER) {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), PageError> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        if let Err(error) = writer.flush() {
            self.forget_unwritten();
            self.lost = Some(error.to_string());
            return Err(error);
        }
        Ok(())
    }

    /// Makes all that was put since the last call last, or says that it does not.
    pub(super) fn sync(&mut self) -> Result<(), PageError> {
        if let Some(why) = self.lost.take() {
            return Err(PageError::Lost { store: self.dir.clone(), why });
        }
        self.sync_relied_on()?;
        let Some(writer) = &mut self.writer else { return Ok(()) };
        if let Err(error) = writer.sync() {
            self.forget_unwritten();
            return Err(error);
        }
        Ok(())
    }

    /// Done with the pack that is written to.
    fn close(&mut self) -> Result<(), PageError> {
        if let Some(mut writer) = self.writer.take()
            && let Err(error) = writer.sync()
        {
            self.forget_unwritten();
            self.lost = Some(error.to_string());
            return Err(error);
        }
        Ok(())
    }

    /// Whoever stored a page here already is taken at its word: it counts on it.
    pub(super) fn rely_on(&mut self, at: Location) {
        if self.writer.as_ref().is_none_or(|writer| writer.number != at.pack) {
            self.relied_on.insert(at.pack);
        }
    }

    /// The process whose pages are relied on may not have come to syncing its index yet (the pack it has).
    fn sync_relied_on(&mut self) -> Result<(), PageError> {
        while let Some(&number) = self.relied_on.first() {
            let seen = self.seen.get(&number).copied().unwrap_or(0);
            if self.on_disk.get(&number).is_none_or(|known| *known < seen) {
                let path = index_path(&self.dir, number);
                let synced = File::open(&path).and_then(|file| file.sync_data());
                synced.map_err(|source| PageError::Io { path, source })?;
                self.on_disk.insert(number, seen);
            }
            self.relied_on.remove(&number);
        }
        Ok(())
    }

    /// After a failed write nothing of this writer is trusted: drop it and read the indexes again.
    fn forget_unwritten(&mut self) {
        if let Some(mut writer) = self.writer.take() {
            // What no entry names takes no room, which the disk may not have. (The error that matters is the first one.)
            let _ = writer.pack.truncate(writer.synced);
        }
        self.on_disk.clear();
        self.known.clear();
        self.seen.clear();
        self.files.clear();
        self.loaded = false;
    }

    /// Locks a pack that is neither full, foreign nor another process's, newest first, or starts a new one.
    fn open_writer(&mut self) -> Result<Writer, PageError> {
        durable::create_dir(&self.dir)?;
        let numbers = list(&self.dir);
        let closed = self.closed;
        for &number in numbers.iter().rev().take_while(|number| **number > closed).take(16) {
            let small = std::fs::metadata(pack_path(&self.dir, number)).is_ok_and(|m| m.len() < PACK_LIMIT);
            if small && let Some(writer) = self.lock_pack(number)? {
                return Ok(writer);
            }
        }
        let mut number = numbers.last().copied().unwrap_or(0).max(self.closed) + 1;
        loop {
            // Two processes may choose one number: only one gets the lock, the other takes the next.
            if let Some(writer) = self.lock_pack(number)? {
                return Ok(writer);
            }
            number += 1;
        }
    }

    fn lock_pack(&mut self, number: u32) -> Result<Option<Writer>, PageError> {
        let path = pack_path(&self.dir, number);
        let io = |source| PageError::Io { path: path.clone(), source };
        let mut pack = Appender::open(&path, None)?;
        match pack.file().try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        // `gc` may have removed the file between opening and locking.
        if !path.exists() {
            return Ok(None);
        }
        let valid = self.load_index(number)?;
        let end = match scan_index(&self.dir, number, 0)? {
            Some(scan) if scan.foreign => return Ok(None),
            Some(scan) if valid > 0 => scan.end(),
            _ => 0,
        };
        pack.truncate(end)?;
        let mut index = Appender::open(&index_path(&self.dir, number), Some(valid))?;
        if pack.is_empty() {
            pack.append(&index::header(index::PACK_MAGIC, number))?;
            pack.sync()?;
        }
        if index.is_empty() {
            index.append(&index::header(index::INDEX_MAGIC, number))?;
        }
        self.files.remove(&number);
        let compressor = zstd::bulk::Compressor::new(1).map_err(io)?;
        let synced = pack.len();
        let (gathered, entries) = (Vec::new(), Vec::new());
        Ok(Some(Writer { number, pack, index, synced, gathered, entries, compressor }))
    }
}

impl Writer {
    fn add(&mut self, hash: PageHash, page: &[u8; PAGE_SIZE]) -> Result<Location, PageError> {
        let mut buffer = [0; PAGE_SIZE];
        // A page that does not get smaller does not fit the buffer, and is stored as it is.
        let stored = match self.compressor.compress_to_buffer(page, &mut buffer[..PAGE_SIZE - 1]) {
            Ok(len) => &buffer[..len],
            Err(_) => &page[..],
        };
        let offset = self.pack.len() + self.gathered.len() as u64;
        let at = Location { pack: self.number, offset, len: stored.len() as u32 };
        self.gathered.extend_from_slice(stored);
        self.entries.extend_from_slice(&index::encode(hash, at));
        Ok(at)
    }

    fn flush(&mut self) -> Result<(), PageError> {
        if !self.gathered.is_empty() {
            self.pack.append(&self.gathered)?;
            self.gathered.clear();
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), PageError> {
        if self.entries.is_empty() {
            return Ok(());
        }
        self.flush()?;
        self.pack.sync()?;
        // From here on entries may name it.
        self.synced = self.pack.len();
        self.index.append(&self.entries)?;
        self.entries.clear();
        self.index.sync()?;
        Ok(())
    }
}

pub(super) struct Scan {
    /// Whole entries that point inside the pack, in file order.
    pub(super) entries: Vec<(PageHash, Location)>,
    /// Bytes of the index up to and with the last of them.
    pub(super) valid: u64,
    /// Its header is another pack's, and no entry is this one's: what it holds cannot be reached.
    pub(super) foreign: bool,
}

/// Reads an index from byte `from` on; `None` if there is nothing there. Entries have their own checks, so a damaged
/// header costs nothing.
pub(super) fn scan_index(dir: &Path, number: u32, from: u64) -> Result<Option<Scan>, PageError> {
    let path = index_path(dir, number);
    let io = |source| PageError::Io { path: path.clone(), source };
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io(source)),
    };
    if file.metadata().map_err(io)?.len() <= from.max(HEADER - 1) {
        return Ok(None);
    }
    let mut header = [0; HEADER as usize];
    file.read_exact(&mut header).map_err(io)?;
    let from = from.max(HEADER);
    let pack_len = std::fs::metadata(pack_path(dir, number)).map_or(0, |meta| meta.len());
    io::Seek::seek(&mut file, io::SeekFrom::Start(from)).map_err(io)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(io)?;
    let mut scan = Scan { entries: Vec::with_capacity(bytes.len() / ENTRY), valid: from, foreign: false };
    let (entries, _torn) = bytes.as_chunks::<ENTRY>();
    for (i, entry) in entries.iter().enumerate() {
        let inside = |at: &Location| {
            (1..=PAGE_SIZE as u32).contains(&at.len)
                && at.offset >= HEADER
                && at.offset.checked_add(u64::from(at.len)).is_some_and(|end| end <= pack_len)
        };
        // A damaged entry between whole ones costs only its own page.
        if let Some((hash, at)) = index::decode(entry, number).filter(|(_, at)| inside(at)) {
            scan.entries.push((hash, at));
            scan.valid = from + (i as u64 + 1) * ENTRY as u64;
        }
    }
    if from == HEADER && scan.entries.is_empty() {
        let expected = index::header(index::INDEX_MAGIC, number);
        let (magic, same_number) = (header[..8] == expected[..8], header[12..] == expected[12..]);
        let found = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        if magic && same_number && found != index::VERSION && !entries.is_empty() {
            return Err(PageError::Version { path, found, known: index::VERSION });
        }
        scan.foreign = magic && !same_number && found == index::VERSION;
    }
    Ok(Some(scan))
}

impl Scan {
    /// Where the data that the index knows of ends in its pack.
    fn end(&self) -> u64 {
        self.entries.iter().map(|(_, at)| at.offset + u64::from(at.len)).max().unwrap_or(HEADER)
    }
}
