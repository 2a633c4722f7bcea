//! Learning runs: one machine stepped from commit to commit, noting every scheduling point and, where the engine
//! sees them, which memory two threads share, and how near to the program's own source each access is.

use std::collections::BTreeMap;

use debug::{
    look::{self, Files, is_users},
    unwind::AddressSpace,
};
use rewind_platform::state::{ST_RETURNS, ST_SYSCALL, ST_TID};
use vmm::{
    address::{Gva, Step},
    engine::StreamAccess,
    machine::{Machine, Stop, Until},
};

use crate::{
    base::{BaseError, Worker, others_can_run},
    decision::{Action, Decision, Place},
    facts::{Facts, Nearness, Point, SharedAccess, ThreadFacts},
    observe::Fork,
    rng::Rng,
    stops::Stops,
    strategy::StrategyName,
};

/// Scheduling points gathered at most; a longer program is perturbed in its first part only.
const MOST_POINTS: usize = 200_000;
/// User instructions whose accesses are looked at, over one learning run.
const MOST_STREAMED: u64 = 8_000_000;
/// A first learning run with more user instructions or points than this is the only one.
const SHORT: (u64, usize) = (4_000_000, 10_000);
/// Pages whose accesses are kept.
const MOST_PAGES: usize = 16 << 10;
/// Accesses kept of one thread to one location: the first and the last ones.
const KEPT: usize = 12;
/// Accesses to shared locations kept of one learning run.
const MOST_ACCESSES: usize = 50_000;
/// Instructions after one of the program's own source that count as near to it: a call of an atomic or a small helper.
const NEAR: u64 = 48;
/// Shared libraries are mapped above this, a program's own code below (mmap_base is near the top of the lower half;
/// an executable is linked low or loaded at two thirds of the address space, fs/binfmt_elf.c ELF_ET_DYN_BASE).
const LIBRARIES: u64 = 0x7000_0000_0000;

/// One access of one thread.
#[derive(Clone, Copy, Debug)]
struct Touch {
    thread: u32,
    point: u32,
    offset: u64,
    rip: u64,
    address: u64,
    write: bool,
    near: Nearness,
}

/// Which code is the program's own, by the debug information of each program run.
struct OwnCode<'a> {
    files: &'a mut Files,
    /// By `mm_struct`: the files mapped when its first thread was seen.
    spaces: BTreeMap<Gva, AddressSpace>,
    /// The space of the thread that committed last.
    here: Option<Gva>,
    /// Answers, a slot for each hash of a space and an address: most accesses come from the same few instructions.
    known: Vec<(Option<Gva>, u64, bool)>,
    /// User instructions when the program's own code was last seen.
    last_own: Option<u64>,
}

impl<'a> OwnCode<'a> {
    const SLOTS: usize = 1 << 14;

    fn new(files: &'a mut Files) -> Self {
        let known = vec![(None, 0, false); OwnCode::SLOTS];
        OwnCode { files, spaces: BTreeMap::new(), here: None, known, last_own: None }
    }

    /// The thread on the CPU has committed a step.
    fn committed(&mut self, machine: &mut Machine) -> Result<(), BaseError> {
        let failed = |error: debug::kernel::ReadError| BaseError::Stop(error.to_string());
        self.last_own = None;
        let cpu = machine.cpu()?;
        let Some(kernel) = look::kernel(machine) else { return Ok(()) };
        let task = debug::process::current(&kernel, &cpu).map_err(failed)?;
        let thread = debug::process::thread(&kernel, task).map_err(failed)?;
        self.here = thread.as_ref().and_then(|thread| thread.mm);
        if let (Some(thread), Some(mm)) = (thread, self.here)
            && !self.spaces.contains_key(&mm)
        {
            let space = look::address_space(&kernel, &thread, self.files).map_err(failed)?;
            self.spaces.insert(mm, space);
        }
        Ok(())
    }

    fn nearness(&mut self, access: &StreamAccess) -> Nearness {
        let rip = access.rip.0;
        let mixed = (rip ^ self.here.map_or(0, |mm| mm.0 >> 6)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slot = (mixed >> 50) as usize % OwnCode::SLOTS;
        if (self.known[slot].0, self.known[slot].1) != (self.here, rip) {
            self.known[slot] = (self.here, rip, self.is_own(rip));
        }
        if self.known[slot].2 {
            self.last_own = Some(access.before.0);
            return Nearness::Own;
        }
        if self.last_own.is_some_and(|own| access.before.0.saturating_sub(own) <= NEAR) {
            return Nearness::Near;
        }
        // A library that works on the program's own data works for the program.
        if rip >= LIBRARIES && access.address.0 >= LIBRARIES { Nearness::Library } else { Nearness::Program }
    }

    fn is_own(&self, rip: u64) -> bool {
        let Some(loaded) = self.here.and_then(|mm| self.spaces.get(&mm)?.module_at(rip)) else {
            return false;
        };
        let lines = loaded.module.source(rip.wrapping_sub(loaded.bias));
        let own = |file: &String| is_users(file, &loaded.module.path);
        lines.iter().filter_map(|line| line.file.as_ref()).any(own)
    }
}

/// Accesses by location: page number, then eight bytes in the page.
#[derive(Debug, Default)]
struct Touches {
    pages: BTreeMap<u64, Vec<Vec<Touch>>>,
    shut: bool,
}

impl Touches {
    fn note(&mut self, access: &StreamAccess, touch: Touch) {
        let page = access.physical.0 >> 12;
        if self.shut && !self.pages.contains_key(&page) {
            return;
        }
        let cells = self.pages.entry(page).or_insert_with(|| vec![Vec::new(); 512]);
        let first = (access.physical.0 & 0xfff) / 8;
        // A part beyond the page's end belongs to a page that is not known here.
        let last = ((access.physical.0 & 0xfff) + u64::from(access.size.max(1)) - 1).min(4095) / 8;
        for cell in first..=last {
            let cell = &mut cells[cell as usize];
            let own = cell.iter().filter(|known| known.thread == touch.thread).count();
            if own >= KEPT {
                // The last ones: the oldest of the second half makes room.
                let oldest = cell
                    .iter()
                    .enumerate()
                    .filter(|(_, known)| known.thread == touch.thread)
                    .nth(KEPT / 2)
                    .map_or(0, |(i, _)| i);
                cell.remove(oldest);
            }
            cell.push(touch);
        }
        self.shut = self.pages.len() >= MOST_PAGES;
    }

    /// The accesses that another thread's could meet, in order.
    fn shared(self, facts: &Facts) -> Vec<SharedAccess> {
        let mut found: BTreeMap<(u32, u64, u64), SharedAccess> = BTreeMap::new();
        for cell in self.pages.into_values().flatten() {
            if cell.iter().all(|touch| !touch.write) || cell.iter().all(|t| t.thread == cell[0].thread) {
                continue;
            }
            for touch in &cell {
                let conflict = |other: &&Touch| {
                    other.thread != touch.thread
                        && (other.write || touch.write)
                        && !ordered(facts, touch, other)
                        && !ordered(facts, other, touch)
                        && same_memory(facts, &cell, touch.thread, other.thread)
                };
                if cell.iter().find(conflict).is_none() {
                    continue;
                }
                let mut place = facts.points[touch.point as usize].place;
                place.offset = touch.offset;
                let Touch { address, rip, write, near, .. } = *touch;
                let access = SharedAccess { place, address, rip, write, near, run: 0 };
                found.insert((touch.point, touch.offset, touch.address), access);
            }
        }
        found.into_values().take(MOST_ACCESSES).collect()
    }
}

/// Is `first` always before `then`, because the thread of `then` (or one it descends from) was created by the thread
/// of `first` afterwards?
fn ordered(facts: &Facts, first: &Touch, then: &Touch) -> bool {
    let (ancestor, mut at) = (&facts.threads[first.thread as usize], &facts.threads[then.thread as usize]);
    for _ in 0..facts.threads.len() {
        if at.parent == ancestor.name {
            return facts.points[first.point as usize].step <= at.born;
        }
        match facts.threads.iter().find(|thread| thread.name == at.parent) {
            Some(parent) => at = parent,
            None => return false,
        }
    }
    false
}

/// Two processes whose accesses to one page do not overlap in time most likely had it one after the other.
fn same_memory(facts: &Facts, cell: &[Touch], a: u32, b: u32) -> bool {
    if facts.threads[a as usize].pid == facts.threads[b as usize].pid {
        return true;
    }
    let span = |thread| {
        let own = || cell.iter().filter(|touch| touch.thread == thread).map(|touch| touch.point);
        (own().min().unwrap_or(0), own().max().unwrap_or(0))
    };
    let (a, b) = (span(a), span(b));
    a.0 < b.1 && b.0 < a.1
}

/// Learns from schedule 0 and, if the program is short, from a few runs that bring its threads together.
pub fn learn(worker: &mut Worker, files: &mut Files) -> Result<Facts, BaseError> {
    // Nobody shares memory with a job of one thread.
    let stream = worker.base().forks && worker.machine().engine().capabilities().user_stream;
    let mut own = OwnCode::new(files);
    let (undisturbed, ran) = worker.learn(&[], stream, &mut own)?;
    let mut facts = Facts { threads: undisturbed.threads.clone(), ..Facts::default() };
    let points = undisturbed.points.len();
    facts.merge(undisturbed, Vec::new());
    if ran <= SHORT.0 && points <= SHORT.1 && facts.threads.len() > 1 {
        let mut runs = together(&facts);
        if stream {
            let meetings = (SHORT.0 / ran.max(1)).clamp(1, MEETINGS);
            runs.extend((0..meetings).map(|n| meeting(&facts, n)));
        }
        for decisions in runs {
            let (more, _) = worker.learn(&decisions, stream, &mut own)?;
            facts.merge(more, decisions);
        }
    }
    if stream {
        facts.stops = Stops::new(&facts.accesses, &facts.points);
    }
    Ok(facts)
}

/// Schedules under which threads meet: everybody takes turns, and the last one created goes first.
fn together(facts: &Facts) -> Vec<Vec<Decision>> {
    let turns = facts.choices().step_by(2).take(2000);
    let turns = turns.map(|place| Decision { place, action: Action::Preempt }).collect();
    let reversed = crate::strategy::in_order(facts, facts.threads.iter().rev().map(|thread| thread.name));
    let mut random = StrategyName::Random.make().schedule(0, 1, facts);
    random.retain(|decision| decision.place.offset == 0);
    vec![turns, reversed, random]
}

/// Learning runs with stalls inside steps, for the shortest programs.
const MEETINGS: u64 = 6;

/// One of the two busiest threads is held up in the midst of its computing: where tasks move between threads
/// (goroutines), another thread takes over what is left, and only then do two threads touch what the tasks share.
fn meeting(facts: &Facts, n: u64) -> Vec<Decision> {
    const MOST: usize = 200;
    /// Shorter steps are left alone.
    const LONG: u64 = 64;
    const STALL: u64 = 1_000_000;
    let mut rng = Rng::new(n, 0);
    let mut work: BTreeMap<u64, u64> = BTreeMap::new();
    for point in facts.points.iter().filter(|point| point.contended) {
        *work.entry(point.place.thread).or_default() += point.inside;
    }
    let mut busiest: Vec<(u64, u64)> = work.into_iter().map(|(thread, work)| (work, thread)).collect();
    busiest.sort_unstable_by_key(|(work, thread)| (std::cmp::Reverse(*work), *thread));
    let Some(&(_, thread)) = busiest.get(n as usize % busiest.len().clamp(1, 2)) else { return Vec::new() };
    let own = |point: &&Point| point.place.thread == thread && point.contended && point.inside >= LONG;
    let long: Vec<&Point> = facts.points.iter().filter(own).collect();
    let every = (long.len() / MOST).max(1);
    let mut decisions: Vec<Decision> = long
        .into_iter()
        .step_by(every)
        .map(|point| {
            let place = Place { offset: 1 + rng.below(point.inside - 1), ..point.place };
            Decision { place, action: Action::Stall(STALL) }
        })
        .collect();
    decisions.sort_unstable();
    decisions
}

impl Worker {
    /// Steps through the run under `decisions`; also the user instructions it took.
    fn learn(
        &mut self,
        decisions: &[Decision],
        stream: bool,
        own: &mut OwnCode<'_>,
    ) -> Result<(Facts, u64), BaseError> {
        self.begin(decisions)?;
        self.machine()
            .engine()
            .set_user_stream(stream)
            .or_else(|e| if stream { Err(e) } else { Ok(()) })
            .map_err(vmm::MachineError::from)?;
        let learned = self.step_through(decisions, stream, own);
        if stream {
            self.machine().engine().set_user_stream(false).map_err(vmm::MachineError::from)?;
        }
        learned
    }

    fn step_through(
        &mut self,
        decisions: &[Decision],
        mut stream: bool,
        own: &mut OwnCode<'_>,
    ) -> Result<(Facts, u64), BaseError> {
        let (limit, deadline) = (self.base().limit, self.base().deadline);
        let mut observer = self.base().observer(false);
        let known = observer.forks.clone();
        let root = thread_facts(rewind_platform::control::THREAD_ROOT, 0, None);
        let before = known.iter().filter(|fork| fork.parent != 0);
        let threads =
            std::iter::once(root).chain(before.map(|fork| thread_facts(fork.child, fork.tid, Some(fork))));
        let mut facts = Facts { threads: threads.collect(), ..Facts::default() };
        let mut touches = Touches::default();
        // The thread that committed last, its point, and the user instructions then.
        let mut here: Option<(u32, u32, u64)> = None;
        let mut applied = vec![None; decisions.len()];
        let machine = self.machine();
        let start = machine.engine().counters().user_instructions.0;
        // What stopped the machine already, inside the step before.
        let mut stopped: Option<Stop> = None;
        loop {
            let machine = self.machine();
            let stop = match stopped.take() {
                Some(stop) => stop,
                None => {
                    let next = Step(machine.step().0 + 1);
                    machine.run(&Until::step(next), &mut observer)?
                }
            };
            let ran = machine.engine().counters().user_instructions.0;
            if let Some((thread, point, since)) = here.take() {
                facts.points[point as usize].inside = ran - since;
                for access in machine.engine().take_user_stream() {
                    let touch = Touch {
                        thread,
                        point,
                        offset: access.before.0.saturating_sub(since),
                        rip: access.rip.0,
                        address: access.address.0,
                        write: access.write,
                        near: own.nearness(&access),
                    };
                    touches.note(&access, touch);
                }
            } else {
                machine.engine().take_user_stream();
            }
            match stop {
                Stop::Step | Stop::Decision => {}
                Stop::End(_) | Stop::Fault(_) => break,
                other => return Err(BaseError::Stop(format!("{other:?}"))),
            }
            if stream && ran - start > MOST_STREAMED {
                stream = false;
                machine.engine().set_user_stream(false).map_err(vmm::MachineError::from)?;
            }
            if facts.points.len() >= MOST_POINTS
                || machine.step() >= limit
                || deadline.is_some_and(|at| machine.now() > at)
            {
                break;
            }
            let name = machine.thread();
            if name == 0 {
                continue;
            }
            if stream {
                own.committed(machine)?;
            }
            let get = |offset| machine.state_u64(offset).unwrap_or(0);
            let place =
                Place { thread: name, syscall: get(ST_SYSCALL), returns: get(ST_RETURNS) as u32, offset: 0 };
            let tid = (get(ST_TID) & 0xffff_ffff) as u32;
            let thread = facts.threads.iter().position(|thread| thread.name == name).unwrap_or_else(|| {
                let fork = observer.forks.iter().find(|fork| fork.child == name);
                facts.threads.push(thread_facts(name, tid, fork));
                facts.threads.len() - 1
            });
            let known_thread = &mut facts.threads[thread];
            known_thread.points += 1;
            if known_thread.tid == 0 {
                // The job's first thread: nobody in the job created it.
                (known_thread.tid, known_thread.pid) = (tid, tid);
            }
            let contended = others_can_run(machine);
            let (point, step) = (facts.points.len() as u32, machine.step().0);
            facts.points.push(Point { step, place, inside: 0, contended });
            here = Some((thread as u32, point, ran));
            let inside = |decision: &Decision| {
                decision.place.offset > 0 && Place { offset: 0, ..decision.place } == place
            };
            if decisions.iter().any(inside) {
                stopped = self.act_inside(decisions, &mut applied, &mut observer)?;
                if stopped.is_none() && self.machine().step().0 != step {
                    // The step was over before the place: the next commit has come already.
                    stopped = Some(Stop::Step);
                }
            }
        }
        facts.accesses = touches.shared(&facts);
        let ran = self.machine().engine().counters().user_instructions.0 - start;
        Ok((facts, ran))
    }
}

fn thread_facts(name: u64, tid: u32, fork: Option<&Fork>) -> ThreadFacts {
    let (parent, nth, pid, born) = fork.map_or((0, 0, tid, 0), |f| (f.parent, f.nth, f.pid, f.step));
    ThreadFacts { name, parent, nth, tid, pid, born, points: 0 }
}
