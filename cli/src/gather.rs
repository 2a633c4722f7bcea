//! What is kept of a job's root with its run, beside what the job read: programs with symbols and their sources.

use debug::gather::{Tree, gather};
use image::lookup::{Found, Lookup};
use run::{record::Programs, spec::Spec};
use vmm::BlockImage;

/// Files of an image.
struct Files {
    lookup: Lookup,
    /// The file whose size was asked for last.
    found: Option<Found>,
}

impl Tree for Files {
    fn size(&mut self, path: &[u8]) -> Option<u64> {
        self.found = self.lookup.regular(path).ok();
        self.found.map(|found| found.size())
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Option<()> {
        let read = self.lookup.read_at(&self.found?, offset, out).ok()?;
        (read == out.len()).then_some(())
    }
}

/// Reads it for the job of `spec`. That some of it cannot be had is no fault: the run is whole without.
pub(crate) fn of(spec: &Spec) -> impl Fn(&Programs, Vec<Vec<u8>>, Box<dyn BlockImage>) + use<> {
    let directory = spec.job.cwd.clone();
    let path =
        spec.job.env.iter().find_map(|entry| entry.strip_prefix(b"LD_LIBRARY_PATH=")).unwrap_or_default();
    let path = path.split(|byte| *byte == b':').filter(|part| !part.is_empty());
    let path: Vec<Vec<u8>> = path.map(<[u8]>::to_vec).collect();
    move |programs, files, image| {
        if let Ok(lookup) = Lookup::new(image) {
            gather(&mut Files { lookup, found: None }, programs, files, &directory, &path);
        }
    }
}
