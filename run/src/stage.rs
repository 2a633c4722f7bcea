//! A machine on a spec, placed at keyframes and run from there. What records, replays, seeks and checks is built on
//! it; it stores nothing itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    os::unix::fs::FileExt,
    sync::Arc,
};

use rewind_platform::control::DecisionEntry;
use vmm::{
    BlockImage, EngineKind, Machine, RecordSink, Stop, Until,
    address::{Instructions, Position, Step},
    memory::{GuestMemory, PageSet, Written},
};

use crate::{
    boot::{self, Boot, decode_state, page_set},
    decision::Decision,
    error::StageError,
    home::Home,
    keyframe::{KeyframeError, LoadError, Whole},
    spec::Spec,
    store::{PAGE_SIZE, PageHash, PageStore},
};

mod checkpoint;
mod cost;
pub use checkpoint::Checkpoint;

/// Where [`Stage::run`] should stop, besides where everything stops.
pub type Target = Until;

/// A machine on a spec.
pub struct Stage {
    machine: Machine,
    spec: Spec,
    boot: Arc<Boot>,
    /// The boot keyframe's memory as a file, where there is one.
    raw: Option<File>,
    store: Arc<PageStore>,
    /// Pages of the keyframe last restored that differ from the boot keyframe.
    placed: BTreeMap<u64, PageHash>,
    /// Pages that may differ from it now.
    dirty: PageSet,
    /// Pages written since [`Stage::take_changed`].
    changed: PageSet,
    /// Pages of the last snapshot.
    before: Vec<u64>,
    /// Decisions inside a step, of the segment that counts now; those done are removed.
    inside: Vec<Decision>,
    /// Those of them whose step has begun, with the position they act at, in that order.
    due: Vec<(Position, Decision)>,
    /// Decisions of the present segment that had been taken when the machine was placed here.
    taken: Vec<DecisionEntry>,
    /// The step at which other decisions are to be armed.
    next_segment: Option<u64>,
}

/// Most pages whose written bytes are noted between two snapshots.
const MOST_FOLLOWED: usize = 1024;
/// Most ranges kept of each.
const MOST_RANGES: usize = 16;

/// Memory as the boot keyframe has it, from the page store.
fn filled(store: &PageStore, boot: &Boot, bytes: u64) -> Result<GuestMemory, StageError> {
    let memory = GuestMemory::new(bytes)?;
    let filled =
        boot.whole.load("boot", store, |page, content| memory.write(memory.address_of(page), content));
    match filled {
        Ok(()) => Ok(memory),
        Err(LoadError::Keyframe(error)) => Err(error.into()),
        Err(LoadError::Put(error)) => Err(error.into()),
    }
}

/// A copy of the machine, to be stored.
pub struct Snapshot {
    /// The step it is at.
    pub step: u64,
    /// Everything but memory.
    pub machine: Vec<u8>,
    /// Indexes of the pages written since the last snapshot.
    pub pages: Vec<u64>,
    /// Their content, back to back.
    pub content: Vec<u8>,
    /// What was written of some of them; of the others all may have been.
    pub written: Vec<Written>,
}

impl Stage {
    /// A machine at the boot keyframe, with the job waiting to be handed over.
    pub fn new(
        home: &Home,
        spec: &Spec,
        engine: EngineKind,
        boot: Arc<Boot>,
        images: Vec<Box<dyn BlockImage>>,
    ) -> Result<Stage, StageError> {
        let none = vmm::KernelFiles {
            vmlinux: Arc::from([]),
            initramfs: Arc::from([]),
            command_line: String::new(),
        };
        let config = boot::config(spec, engine, none)?;
        // A cache may be gone at any time.
        let raw = boot.raw.as_ref().and_then(|path| File::open(path).ok());
        let memory = match &raw {
            Some(raw) => GuestMemory::over_file(raw, spec.memory)?,
            None => filled(home.pages(), &boot, spec.memory)?,
        };
        let memory = Arc::new(memory);
        let mut machine = Machine::over(&config, memory)?;
        machine.set_images(images);
        machine.set_job(&spec.job, &spec.parameters)?;
        let state = decode_state(&boot.whole.keyframe.machine, "the boot keyframe")?;
        machine.restore(&state)?;
        let mut stage = Stage {
            machine,
            spec: spec.clone(),
            boot,
            raw,
            store: home.pages().clone(),
            placed: BTreeMap::new(),
            dirty: page_set(spec.memory),
            changed: page_set(spec.memory),
            before: Vec::new(),
            inside: Vec::new(),
            due: Vec::new(),
            taken: Vec::new(),
            next_segment: None,
        };
        stage.forget_dirty()?;
        stage.arm(stage.machine.step().0, Vec::new())?;
        Ok(stage)
    }

    /// The machine. Looking is free; whoever changes it must restore before anything is compared or stored.
    pub fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// The machine alone, waiting for its job at the boot keyframe.
    pub fn into_machine(self) -> Machine {
        self.machine
    }

    /// The spec.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The boot keyframe it started from.
    pub fn boot(&self) -> &Arc<Boot> {
        &self.boot
    }

    /// Where it is.
    pub fn position(&self) -> Position {
        self.machine.position()
    }

    /// Puts another spec on the same machine, at the boot keyframe: for many schedules of one job.
    pub fn change_spec(&mut self, spec: &Spec) -> Result<(), StageError> {
        self.machine.set_job(&spec.job, &spec.parameters)?;
        self.spec = spec.clone();
        self.restore_boot()
    }

    fn forget_dirty(&mut self) -> Result<(), StageError> {
        self.machine.take_dirty(&mut self.dirty)?;
        self.dirty.clear();
        self.changed.clear();
        self.before.clear();
        self.machine.engine().follow_writes(&[]);
        Ok(())
    }

    fn collect_dirty(&mut self) -> Result<(), StageError> {
        let mut pages = page_set(self.spec.memory);
        self.machine.take_dirty(&mut pages)?;
        self.dirty.union(&pages);
        self.changed.union(&pages);
        Ok(())
    }

    /// Back to the boot keyframe.
    pub fn restore_boot(&mut self) -> Result<(), StageError> {
        let boot = self.boot.clone();
        let keyframe = &boot.whole.keyframe;
        self.place(BTreeMap::new(), &keyframe.machine, keyframe.step, "boot", Vec::new())
    }

    /// To a keyframe of the run, which must build on this stage's boot keyframe; `taken`: what
    /// [`decision::taken`](crate::decision::taken) says of it.
    pub fn restore(&mut self, whole: &Whole, run: &str, taken: Vec<DecisionEntry>) -> Result<(), StageError> {
        let keyframe = &whole.keyframe;
        let nonsense = |what| KeyframeError::Nonsense { run: run.into(), step: keyframe.step, what };
        if whole.boot != Some(self.boot.key) {
            return Err(nonsense("it builds on another boot keyframe").into());
        }
        if keyframe.memory != self.spec.memory {
            return Err(nonsense("it is of a machine with another size of memory").into());
        }
        self.place(whole.pages.clone(), &keyframe.machine, keyframe.step, run, taken)
    }

    /// Writes back only what is not as it should be.
    fn place(
        &mut self,
        pages: BTreeMap<u64, PageHash>,
        machine: &[u8],
        step: u64,
        run: &str,
        taken: Vec<DecisionEntry>,
    ) -> Result<(), StageError> {
        let state = decode_state(machine, &format!("keyframe {step} of run {run}"))?;
        self.collect_dirty()?;
        let mut wrong = self.dirty.clone();
        for (page, hash) in &pages {
            if self.placed.get(page) != Some(hash) {
                wrong.insert(*page);
            }
        }
        for page in self.placed.keys().filter(|page| !pages.contains_key(page)) {
            wrong.insert(*page);
        }
        let mut content = [0; PAGE_SIZE];
        for page in wrong.iter() {
            match pages.get(&page) {
                Some(hash) => self.store.get(*hash, &mut content).map_err(|source| KeyframeError::Page {
                    run: run.into(),
                    step,
                    page,
                    source,
                })?,
                None => {
                    self.boot_page(page, &mut content)?;
                }
            }
            let memory = self.machine.memory();
            memory.write(memory.address_of(page), &content)?;
        }
        self.machine.reset(&state, &wrong)?;
        self.placed = pages;
        self.forget_dirty()?;
        self.arm(step, taken)?;
        // The guest will not stop here again.
        self.decide_inside();
        Ok(())
    }

    /// A page of the boot keyframe.
    fn boot_page(&self, page: u64, content: &mut [u8; PAGE_SIZE]) -> Result<(), StageError> {
        let Some(raw) = &self.raw else {
            return Ok(self.boot.whole.page("boot", &self.store, page, content)?);
        };
        let io = |source| vmm::memory::MemoryError::Map { bytes: PAGE_SIZE as u64, source };
        Ok(raw.read_exact_at(content, page * PAGE_SIZE as u64).map_err(io)?)
    }

    /// Hands over the decisions that count at `step`, but for those that have been taken.
    fn arm(&mut self, step: u64, taken: Vec<DecisionEntry>) -> Result<(), StageError> {
        let (decisions, next) = self.spec.schedule.at(step);
        let mut entries: Vec<_> = decisions.iter().map(Decision::entry).collect();
        // Two decisions inside one step share one stop.
        entries.dedup();
        for taken in &taken {
            let same = |entry: &DecisionEntry| {
                (entry.thread, entry.syscall, entry.returns, entry.kind, entry.arg)
                    == (taken.thread, taken.syscall, taken.returns, taken.kind, taken.arg)
            };
            if let Some(at) = entries.iter().position(same) {
                entries.remove(at);
            }
        }
        self.taken = taken;
        self.due.clear();
        self.inside = decisions.iter().filter(|decision| decision.place.offset > 0).copied().collect();
        self.next_segment = next;
        self.machine.set_decisions(&entries)?;
        Ok(())
    }

    /// Runs until the target or whatever else stops, applying the spec's decisions on the way. May be called again
    /// after any stop but the end.
    pub fn run(&mut self, target: &Target, sink: &mut dyn RecordSink) -> Result<Stop, StageError> {
        loop {
            self.drop_late();
            let mut until = *target;
            if let Some(next) = self.next_segment {
                until.step = Some(until.step.map_or(Step(next), |step| step.min(Step(next))));
            }
            if let Some((at, _)) = self.due.first() {
                until.position = Some(until.position.map_or(*at, |wanted| wanted.min(*at)));
            }
            if let Some(stop) = self.run_once(target, &until, sink)? {
                return Ok(stop);
            }
        }
    }

    fn run_once(
        &mut self,
        target: &Target,
        until: &Until,
        sink: &mut dyn RecordSink,
    ) -> Result<Option<Stop>, StageError> {
        match self.machine.run(until, sink)? {
            Stop::Step => {
                let step = self.machine.step();
                if self.next_segment.is_some_and(|next| step.0 >= next) {
                    self.arm(step.0, Vec::new())?;
                }
                self.decide_inside();
                let reached = target.step.is_some_and(|wanted| step >= wanted)
                    || target.position.is_some_and(|wanted| step >= wanted.step);
                Ok(reached.then_some(Stop::Step))
            }
            Stop::Position => {
                let here = self.machine.position();
                // The caller stops before a decision of this place: it is taken when it goes on.
                if target.position == Some(here) {
                    return Ok(Some(Stop::Position));
                }
                while self.due.first().is_some_and(|(at, _)| *at == here) {
                    let (_, decision) = self.due.remove(0);
                    let (kind, arg) = decision.action.encode();
                    if !self.machine.act(kind, arg)? {
                        self.inside.push(decision);
                    }
                }
                Ok(None)
            }
            Stop::Decision => {
                self.decide_inside();
                Ok(None)
            }
            Stop::Interrupted => {
                if self.machine.at_commit() {
                    self.decide_inside();
                }
                Ok(Some(Stop::Interrupted))
            }
            other => Ok(Some(other)),
        }
    }

    /// Decisions inside a step that had fewer instructions: their places were not reached.
    fn drop_late(&mut self) {
        let step = self.machine.step();
        let late: Vec<_> = self.due.extract_if(.., |(at, _)| at.step < step).collect();
        self.inside.extend(late.into_iter().map(|(_, decision)| decision));
    }

    /// At a commit, which may be one that a decision inside its step begins with.
    fn decide_inside(&mut self) {
        if self.inside.is_empty() {
            return;
        }
        use rewind_platform::state::{ST_RETURNS, ST_SYSCALL, ST_THREAD};
        let get = |offset| self.machine.state_u64(offset).unwrap_or(0);
        let here = (get(ST_THREAD), get(ST_SYSCALL), get(ST_RETURNS) as u32);
        let step = self.machine.step();
        let due = self.inside.extract_if(.., |decision| {
            (decision.place.thread, decision.place.syscall, decision.place.returns) == here
        });
        self.due.extend(due.map(|decision| {
            let offset = Instructions(decision.place.offset);
            (Position { step, offset }, decision)
        }));
        self.due.sort_by_key(|(at, _)| *at);
    }

    /// Decisions of the spec whose place was not reached so far.
    pub fn missed(&self) -> Result<Vec<Decision>, StageError> {
        let done = self.machine.decisions_done()?;
        let (decisions, _) = self.spec.schedule.at(self.machine.step().0);
        let missed = decisions.iter().filter(|decision| match decision.place.offset {
            0 => !done.iter().any(|entry| {
                let wanted = decision.entry();
                (entry.thread, entry.syscall, entry.returns, entry.kind, entry.arg)
                    == (wanted.thread, wanted.syscall, wanted.returns, wanted.kind, wanted.arg)
            }),
            _ => self.inside.contains(decision) || self.due.iter().any(|(_, due)| due == *decision),
        });
        Ok(missed.copied().collect())
    }

    /// Copies the machine's state and the pages written since the last copy (or restore).
    pub fn snapshot(&mut self) -> Result<Snapshot, StageError> {
        self.collect_dirty()?;
        let pages: Vec<u64> = self.changed.iter().collect();
        self.changed.clear();
        let mut content = vec![0; pages.len() * PAGE_SIZE];
        let memory = self.machine.memory();
        for (page, out) in pages.iter().zip(content.chunks_exact_mut(PAGE_SIZE)) {
            memory.read(memory.address_of(*page), out)?;
        }
        let machine = boot::encode_state(&self.machine.capture()?);
        let written = self.follow_busy(&pages);
        Ok(Snapshot { step: self.machine.step().0, machine, pages, content, written })
    }

    /// What was written, since the last snapshot, of the pages followed; and follows from now on those that were written
    /// before two snapshots in a row, since they are likely to be again.
    fn follow_busy(&mut self, pages: &[u64]) -> Vec<Written> {
        let mut written = self.machine.engine().written();
        for of_page in &mut written {
            of_page.simplify(MOST_RANGES);
        }
        written.retain(|of_page| !of_page.ranges.is_empty());
        let again: BTreeSet<u64> =
            pages.iter().filter(|page| self.before.binary_search(page).is_ok()).copied().collect();
        // Rather those that have been followed.
        let old = written.iter().map(|of_page| of_page.page).filter(|page| again.contains(page));
        let mut next: BTreeSet<u64> = old.take(MOST_FOLLOWED).collect();
        for page in again {
            if next.len() >= MOST_FOLLOWED {
                break;
            }
            next.insert(page);
        }
        self.machine.engine().follow_writes(&next.into_iter().collect::<Vec<_>>());
        self.before = pages.to_vec();
        written
    }

    /// Pages of the keyframe last restored that differ from the boot keyframe.
    pub fn placed(&self) -> &BTreeMap<u64, PageHash> {
        &self.placed
    }

    /// Pages that differ from the keyframe last restored.
    pub fn dirty_pages(&mut self) -> Result<u64, StageError> {
        self.collect_dirty()?;
        Ok(self.dirty.len())
    }
}
