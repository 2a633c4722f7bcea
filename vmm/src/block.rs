//! The image's block port: one request, completed before the guest's `out` returns.

use std::{fmt, io};

use bytemuck::Zeroable;
use rewind_platform::device::{
    BLOCK_ABSENT, BLOCK_EIO, BLOCK_INFO, BLOCK_OK, BLOCK_READ, BLOCK_SEGMENTS, BlockRequest,
};

use crate::{address::Gpa, machine::GuestFault, memory::GuestMemory};

/// Bytes of a sector.
pub const SECTOR: u64 = 512;

/// Bytes copied at a time.
const CHUNK: usize = 64 << 10;

/// A read-only disk image.
pub trait BlockImage: Send {
    /// Its length in bytes, a multiple of 512. Never changes.
    fn len(&self) -> u64;
    /// Fills `out` from `offset`. Only asked for what lies inside.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    /// Nothing in it?
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What came of a request.
pub(crate) enum Served {
    /// Done (a guest that asked for something impossible was told so), with the memory it filled.
    Done(Vec<(Gpa, u64)>),
    /// The host could not read this image.
    Unreadable {
        /// Which.
        image: u32,
        /// Why.
        source: io::Error,
    },
}

/// Serves the request at `address`. Every value in it is the guest's.
pub(crate) fn serve(
    memory: &GuestMemory,
    images: &mut [Box<dyn BlockImage>],
    address: u32,
) -> Result<Served, GuestFault> {
    let at = Gpa(address.into());
    let bad = |what: &str| GuestFault::BlockRequest { address: at.0, what: what.to_owned() };
    if !address.is_multiple_of(16) {
        return Err(bad("its address is not a multiple of 16"));
    }
    let mut request = BlockRequest::zeroed();
    memory.read(at, bytemuck::bytes_of_mut(&mut request)).map_err(|_| bad("it does not lie in memory"))?;
    if memory.page_of(at).is_none() {
        return Err(bad("it does not lie in memory"));
    }
    if request.segments as usize > BLOCK_SEGMENTS {
        return Err(bad("it has too many segments"));
    }
    let mut served = Served::Done(Vec::new());
    let status = match images.get_mut(request.image as usize) {
        None => BLOCK_ABSENT,
        Some(image) => match request.op {
            BLOCK_INFO => {
                request.sector = image.len() / SECTOR;
                BLOCK_OK
            }
            BLOCK_READ => match read(memory, &mut **image, &request) {
                Ok(()) => {
                    let filled = &request.segment[..request.segments as usize];
                    served = Served::Done(filled.iter().map(|s| (Gpa(s.gpa), s.len)).collect());
                    BLOCK_OK
                }
                Err(ReadError::OutOfImage) => BLOCK_EIO,
                Err(ReadError::Guest(what)) => return Err(bad(what)),
                Err(ReadError::Host(source)) => {
                    served = Served::Unreadable { image: request.image, source };
                    BLOCK_EIO
                }
            },
            _ => return Err(bad("it asks for an unknown operation")),
        },
    };
    let offset = |field: usize| Gpa(at.0 + field as u64);
    let written = memory
        .write_u32(offset(std::mem::offset_of!(BlockRequest, status)), status)
        .and_then(|()| memory.write_u64(offset(std::mem::offset_of!(BlockRequest, sector)), request.sector));
    written.map_err(|_| bad("it does not lie in memory"))?;
    Ok(served)
}

enum ReadError {
    OutOfImage,
    Guest(&'static str),
    Host(io::Error),
}

fn read(memory: &GuestMemory, image: &mut dyn BlockImage, request: &BlockRequest) -> Result<(), ReadError> {
    let mut offset = request.sector.checked_mul(SECTOR).ok_or(ReadError::OutOfImage)?;
    let mut buffer = vec![0; CHUNK];
    for segment in &request.segment[..request.segments as usize] {
        if !segment.len.is_multiple_of(SECTOR) {
            return Err(ReadError::Guest("a segment's length is not a multiple of 512"));
        }
        let end = offset.checked_add(segment.len).filter(|end| *end <= image.len());
        let end = end.ok_or(ReadError::OutOfImage)?;
        if segment.len > memory.ram_len() || memory.page_of(Gpa(segment.gpa)).is_none() {
            return Err(ReadError::Guest("a segment does not lie in memory"));
        }
        let mut to = segment.gpa;
        while offset < end {
            let chunk = &mut buffer[..(end - offset).min(CHUNK as u64) as usize];
            image.read(offset, chunk).map_err(ReadError::Host)?;
            memory.write(Gpa(to), chunk).map_err(|_| ReadError::Guest("a segment does not lie in memory"))?;
            offset += chunk.len() as u64;
            to += chunk.len() as u64;
        }
    }
    Ok(())
}

impl fmt::Debug for dyn BlockImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "image of {} bytes", self.len())
    }
}
