//! The spec: all inputs of a run, by content. Its BLAKE3 is the run's id.

use rewind_platform::job::Job;
use serde::{Deserialize, Serialize};
use vmm::{Clock, RunParameters};

use crate::{
    decision::Decision,
    envelope::Kind,
    id::{RunId, SpecHash},
};

/// The file `spec` of a run.
pub const FILE: Kind = Kind { magic: *b"RWDSPEC\0", version: 1, name: "spec", limit: 64 << 20 };

/// BLAKE3 of a whole file (kernel, initramfs, image).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Content(pub [u8; 32]);

impl std::fmt::Display for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&crate::id::hex(&self.0))
    }
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Content({self})")
    }
}

/// One image, by content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSpec {
    /// What it is, by its kind of identity (see the `image` crate): the BLAKE3 of an erofs file's bytes, or of
    /// the metadata of a tree whose data is logged.
    pub content: Content,
    /// Bytes, a multiple of 512.
    pub len: u64,
}

/// Decisions and where they begin to count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// They are handed to the guest when it commits this step (0: with the job), instead of those before.
    pub from: u64,
    /// In ascending order.
    pub decisions: Vec<Decision>,
}

/// How a run deviates from the one nobody disturbs: segments in ascending order of their first step. A fork has its
/// parent's segments and one more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    segments: Vec<Segment>,
}

impl Schedule {
    /// These decisions from step `from` on, none before.
    pub fn new(from: u64, decisions: Vec<Decision>) -> Self {
        Schedule::default().then(from, decisions)
    }

    /// This schedule until step `from`, then these decisions. Equal schedules are equal values.
    pub fn then(&self, from: u64, mut decisions: Vec<Decision>) -> Self {
        decisions.sort_unstable();
        decisions.dedup();
        let mut segments = self.segments.clone();
        segments.retain(|segment| segment.from < from);
        // Where nothing was armed and nothing is, it does not matter from when.
        if segments.last().map_or(&[][..], |last| &last.decisions) != decisions {
            segments.push(Segment { from, decisions });
        }
        Schedule { segments }
    }

    /// The segments, ascending.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The decisions that count at `step`, and the step at which others replace them.
    pub fn at(&self, step: u64) -> (&[Decision], Option<u64>) {
        let next = self.segments.partition_point(|segment| segment.from <= step);
        let decisions = next.checked_sub(1).map_or(&[][..], |i| &self.segments[i].decisions);
        (decisions, self.segments.get(next).map(|segment| segment.from))
    }

    /// From which step on the decisions that count at `step` do, if there are any.
    pub fn from(&self, step: u64) -> Option<u64> {
        let next = self.segments.partition_point(|segment| segment.from <= step);
        let segment = &self.segments[next.checked_sub(1)?];
        (!segment.decisions.is_empty()).then_some(segment.from)
    }
}

/// All inputs of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The platform's version.
    pub platform: u32,
    /// The CPU model's name.
    pub cpu_model: String,
    /// vmlinux.
    pub kernel: Content,
    /// The initramfs with guest init.
    pub initramfs: Content,
    /// The kernel's command line.
    pub command_line: String,
    /// Images in order of their number.
    pub images: Vec<ImageSpec>,
    /// Bytes of RAM.
    pub memory: u64,
    /// Clock mode.
    pub clock: Clock,
    /// The clock's constants.
    pub parameters: RunParameters,
    /// Command, environment, seed, epoch, cores, outputs.
    pub job: Job,
    /// Deviations.
    pub schedule: Schedule,
    /// BLAKE3 of the sealed input log, for a run with outside input; none while it is open and for runs
    /// without.
    pub outside: Option<Content>,
}

impl Spec {
    /// The spec's identity: BLAKE3, keyed by use, of its canonical encoding (postcard of the fields in the
    /// order above: no maps, no floats, so one spec has one encoding).
    pub fn hash(&self) -> SpecHash {
        let encoded = postcard::to_allocvec(self).expect("plain data encodes");
        SpecHash(blake3::derive_key("rewind spec 1", &encoded))
    }

    /// The run's id.
    pub fn id(&self) -> RunId {
        self.hash().id()
    }

    /// The same without the sealed input: what is known before the run.
    pub fn closed(&self) -> Spec {
        Spec { outside: None, ..self.clone() }
    }

    /// Name for the `attempt`-th recording of this spec while it is open.
    pub fn provisional(&self, attempt: u64) -> RunId {
        let mut hasher = blake3::Hasher::new_derive_key("rewind provisional run 1");
        hasher.update(&self.hash().0);
        hasher.update(&attempt.to_le_bytes());
        SpecHash(*hasher.finalize().as_bytes()).id()
    }

    /// The command as a person would type it.
    pub fn command(&self) -> String {
        self.job.argv.iter().map(|arg| quoted(&String::from_utf8_lossy(arg))).collect::<Vec<_>>().join(" ")
    }
}

/// An argument as a shell would need it, and with nothing in it that moves a terminal.
fn quoted(arg: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%^".contains(c);
    if !arg.is_empty() && arg.chars().all(plain) {
        return arg.into();
    }
    let mut out = String::from("'");
    for c in arg.chars() {
        match c {
            '\'' => out.push_str("'\\''"),
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out.push('\'');
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::decision::{Action, Place};

    pub(crate) fn sample() -> Spec {
        Spec {
            platform: 1,
            cpu_model: "rewind-v2".into(),
            kernel: Content([1; 32]),
            initramfs: Content([2; 32]),
            command_line: "quiet".into(),
            images: vec![ImageSpec { content: Content([3; 32]), len: 4096 }],
            memory: 256 << 20,
            clock: Clock::Steps,
            parameters: RunParameters::default(),
            job: Job {
                argv: vec![b"/bin/sh".to_vec(), b"-c".to_vec(), b"echo 'hi'".to_vec()],
                env: vec![b"PATH=/bin".to_vec()],
                cwd: b"/".to_vec(),
                user: String::new(),
                hostname: "rewind".into(),
                cores: 1,
                seed: [7; 32],
                epoch: 1_700_000_000,
                images: 1,
                tty: false,
                outputs: vec![],
                overlay_bytes: 0,
            },
            schedule: Schedule::default(),
            outside: None,
        }
    }

    #[test]
    fn every_input_is_in_the_id() {
        let base = sample();
        let mut others: Vec<Spec> = Vec::new();
        let mut with = |change: &dyn Fn(&mut Spec)| {
            let mut spec = base.clone();
            change(&mut spec);
            others.push(spec);
        };
        let decision = Decision {
            place: Place { thread: 1, syscall: 2, returns: 0, offset: 0 },
            action: Action::Preempt,
        };
        with(&|s| s.platform = 2);
        with(&|s| s.cpu_model.push('x'));
        with(&|s| s.kernel.0[31] = 0);
        with(&|s| s.initramfs.0[31] = 0);
        with(&|s| s.command_line.push(' '));
        with(&|s| s.images[0].len += 512);
        with(&|s| s.memory += 1 << 20);
        with(&|s| s.clock = Clock::Work { slice: 1 << 22 });
        with(&|s| s.parameters.quantum += 1);
        with(&|s| s.job.argv.push(vec![]));
        with(&|s| s.job.seed[0] = 0);
        with(&|s| s.job.epoch += 1);
        with(&|s| s.job.cores = 4);
        with(&|s| s.schedule = Schedule::new(9, vec![decision]));
        with(&|s| s.outside = Some(Content([0; 32])));
        let mut ids: Vec<_> = others.iter().map(Spec::id).collect();
        ids.push(base.id());
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
        assert_eq!(base.id(), base.clone().id());
    }

    /// Pinned: a change of the encoding must change [`FILE`]'s version and the key of [`Spec::hash`].
    #[test]
    fn the_encoding_is_pinned() {
        assert_eq!(sample().id().to_string(), "7fe7a87aeb8d2484");
        assert_eq!(sample().command(), "/bin/sh -c 'echo '\\''hi'\\'''");
    }

    #[test]
    fn order_of_decisions_does_not_matter() {
        let at = |syscall| Decision {
            place: Place { thread: 1, syscall, returns: 0, offset: 0 },
            action: Action::Stall(5),
        };
        assert_eq!(Schedule::new(3, vec![at(2), at(1), at(2)]), Schedule::new(3, vec![at(1), at(2)]));
        assert_eq!(Schedule::new(3, vec![]), Schedule::default());
        let fork = Schedule::new(3, vec![at(1)]).then(9, vec![at(5)]);
        assert_eq!(fork.at(2), (&[][..], Some(3)));
        assert_eq!(fork.at(3), (&[at(1)][..], Some(9)));
        assert_eq!(fork.at(100), (&[at(5)][..], None));
        assert_eq!(fork.then(3, vec![]), Schedule::default());
        assert_eq!(fork.then(20, vec![]).segments().len(), 3);
    }
}
