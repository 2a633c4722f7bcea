//! Compressed tars, unpacked once into the cache so that their data can be read by place.

use crate::stamp::{Stamp, read_fully, stamp_of};
use crate::{OnProgress, Phase, Progress};
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Most bytes a compressed tar may unpack to; a small file can claim any size.
const UNPACKED_MAX: u64 = 64 << 30;

/// How a file is compressed, by its first bytes (RFC 1952, RFC 8878).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    None,
    Gzip,
    Zstd,
}

pub(crate) fn packing(file: &File, range: &Range<u64>) -> io::Result<Packing> {
    let mut magic = [0; 4];
    if range.end - range.start < 4 || !read_fully(file, &mut magic, range.start)? {
        return Ok(Packing::None);
    }
    Ok(match magic {
        [0x1f, 0x8b, ..] => Packing::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd] => Packing::Zstd,
        _ => Packing::None,
    })
}

/// The unpacked form of `range` of `file`, from the cache or made now.
pub(crate) fn unpacked(
    file: &File,
    range: Range<u64>,
    packing: Packing,
    cache: &Path,
    progress: OnProgress<'_>,
) -> io::Result<File> {
    let stamp = stamp_of(file)?;
    let directory = cache.join("unpacked");
    let name = name_of(&stamp, &range);
    if let Ok(found) = File::open(directory.join(&name)) {
        return Ok(found);
    }
    std::fs::create_dir_all(&directory)?;
    let temporary = crate::temporary_beside(&directory.join(&name));
    let result = unpack(file, range, packing, &temporary, progress).and_then(|()| {
        if stamp_of(file)? != stamp {
            return Err(io::Error::other("it changed while it was unpacked"));
        }
        std::fs::rename(&temporary, directory.join(&name))?;
        File::open(directory.join(&name))
    });
    if result.is_err() {
        // What is left of a failed unpacking is of no use; the failure itself is what is reported.
        let _: io::Result<()> = std::fs::remove_file(&temporary);
    }
    result
}

fn name_of(stamp: &Stamp, range: &Range<u64>) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("rewind unpacked tar 1");
    hasher.update(&stamp.encode()).update(&range.start.to_le_bytes()).update(&range.end.to_le_bytes());
    hasher.finalize().to_hex().to_string()
}

fn unpack(
    file: &File,
    range: Range<u64>,
    packing: Packing,
    to: &Path,
    progress: OnProgress<'_>,
) -> io::Result<()> {
    let input = BufReader::with_capacity(1 << 18, Part { file, at: range.start, end: range.end });
    let mut input: Box<dyn Read> = match packing {
        Packing::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(input)),
        Packing::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(input)?),
        Packing::None => Box::new(input),
    };
    let mut out = File::create(to)?;
    let mut buffer = vec![0; 1 << 18];
    let mut done = 0;
    loop {
        let len = match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        out.write_all(&buffer[..len])?;
        done += len as u64;
        if done > UNPACKED_MAX {
            return Err(io::Error::other(
                "it unpacks to more than 64 GiB, which is refused; unpack it by hand",
            ));
        }
        progress(Progress { phase: Phase::Unpack, done, total: None });
    }
    out.sync_data()
}

/// Reads a range of a file.
struct Part<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let most = (self.end - self.at).min(out.len() as u64) as usize;
        let len = self.file.read_at(&mut out[..most], self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}
