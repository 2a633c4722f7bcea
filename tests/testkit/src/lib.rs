//! For end-to-end tests of the machine: boots it once, then runs any number of jobs from the place where init asks
//! for its job, and gathers what they did.
//!
//! `REWIND_TEST_ENGINE` chooses the engine (`soft`, the default, or `kvm`); `REWIND_GUEST` the folder of the guest
//! kernel and its initramfs (`build/guest` of the checkout). Failures panic: this is for tests alone.

mod image;
mod outcome;

use std::{collections::BTreeMap, path::PathBuf};

use rewind_platform::job::Job;
use vmm::{
    EngineKind, KernelFiles, Machine, MachineConfig, MachineState, RunParameters, Stop, Until,
    memory::PageSet,
};

pub use image::FileImage;
pub use outcome::{Event, Gatherer, Outcome};

/// RAM of test machines.
pub const MEMORY: u64 = 256 << 20;

const PAGE: usize = 4096;

/// The checkout's top folder.
pub fn top() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The engine under test.
pub fn engine() -> EngineKind {
    match std::env::var("REWIND_TEST_ENGINE").as_deref() {
        Err(_) | Ok("soft") => EngineKind::Soft,
        Ok("kvm") => EngineKind::Kvm,
        Ok(other) => panic!("REWIND_TEST_ENGINE={other}: must be soft or kvm"),
    }
}

/// Kernel and initramfs under test.
pub fn kernel() -> KernelFiles {
    let folder = std::env::var_os("REWIND_GUEST").map_or_else(|| top().join("build/guest"), PathBuf::from);
    KernelFiles::read(&folder.join("vmlinux"), &folder.join("initramfs.cpio"))
        .unwrap_or_else(|e| panic!("{e}; run scripts/build-guest.sh"))
}

/// What a machine of these tests is made of.
pub fn config() -> MachineConfig {
    MachineConfig::new(MEMORY, engine(), kernel())
}

/// A job over the test root.
pub fn job(command: &[&str]) -> Job {
    Job {
        argv: command.iter().map(|s| s.as_bytes().to_vec()).collect(),
        env: vec![b"PATH=/usr/bin:/bin".to_vec(), b"HOME=/root".to_vec()],
        cwd: b"/".to_vec(),
        user: String::new(),
        hostname: "rewind".into(),
        cores: 1,
        seed: [1; 32],
        epoch: 1_700_000_000,
        images: 1,
        tty: false,
        outputs: Vec::new(),
        overlay_bytes: 0,
    }
}

/// The machine at a stop, with its memory: enough to go on in another process.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct Snapshot {
    /// CPU and the rest that is not memory.
    pub state: MachineState,
    /// Pages that are not zero, by index.
    pub pages: BTreeMap<u64, Vec<u8>>,
}

impl Snapshot {
    /// Captures a stopped machine.
    pub fn take(machine: &mut Machine) -> Snapshot {
        let state = machine.capture().unwrap();
        let memory = machine.memory();
        let mut pages = BTreeMap::new();
        let mut page = vec![0; PAGE];
        for index in 0..memory.pages() {
            memory.read(memory.address_of(index), &mut page).unwrap();
            if page.iter().any(|b| *b != 0) {
                pages.insert(index, page.clone());
            }
        }
        Snapshot { state, pages }
    }

    /// A new machine in this state, with the test root. Job and decisions are for the caller to set.
    pub fn restore(&self, config: &MachineConfig) -> Machine {
        let mut machine = Machine::empty(config).unwrap();
        for (index, page) in &self.pages {
            machine.memory().write(machine.memory().address_of(*index), page).unwrap();
        }
        machine.restore(&self.state).unwrap();
        machine.set_images(vec![Box::new(FileImage::test_root())]);
        machine
    }
}

/// A machine that starts any number of jobs from the boot keyframe.
pub struct Kit {
    base: Snapshot,
    machine: Machine,
    dirty: PageSet,
}

impl Kit {
    /// Boots up to init's request for its job.
    pub fn boot() -> Kit {
        Kit::boot_with(&config())
    }

    /// As [`Kit::boot`], of a machine of one's own making.
    pub fn boot_with(config: &MachineConfig) -> Kit {
        let mut machine = Machine::boot(config).unwrap();
        let mut boot = Gatherer::default();
        let stop = machine.run(&Until::END, &mut boot).unwrap();
        assert_eq!(
            stop,
            Stop::Job,
            "the guest did not reach its job:\n{}",
            boot.finish(&machine, &stop).console
        );
        let base = Snapshot::take(&mut machine);
        let mut dirty = PageSet::new(machine.memory().pages());
        machine.take_dirty(&mut dirty).unwrap();
        dirty.clear();
        Kit { base, machine, dirty }
    }

    /// The machine, wherever it is.
    pub fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// The boot keyframe.
    pub fn base(&self) -> &Snapshot {
        &self.base
    }

    /// The machine at the boot keyframe with `job` to do.
    pub fn start(&mut self, job: &Job) -> &mut Machine {
        self.start_with(job, &RunParameters::default())
    }

    /// As [`Kit::start`], with other parameters.
    pub fn start_with(&mut self, job: &Job, parameters: &RunParameters) -> &mut Machine {
        self.machine.take_dirty(&mut self.dirty).unwrap();
        let (memory, zero) = (self.machine.memory().clone(), vec![0; PAGE]);
        for index in self.dirty.iter() {
            let page = self.base.pages.get(&index).unwrap_or(&zero);
            memory.write(memory.address_of(index), page).unwrap();
        }
        self.machine.reset(&self.base.state, &self.dirty).unwrap();
        // What was put back is as in the keyframe again.
        self.machine.take_dirty(&mut self.dirty).unwrap();
        self.dirty.clear();
        self.machine.set_images(vec![Box::new(FileImage::test_root())]);
        self.machine.set_decisions(&[]).unwrap();
        self.machine.set_job(job, parameters).unwrap();
        &mut self.machine
    }

    /// Runs `job` to its end.
    pub fn run(&mut self, job: &Job) -> Outcome {
        let exits = self.machine.engine().counters().exits;
        let machine = self.start(job);
        let mut outcome = finish(machine);
        outcome.exits = self.machine.engine().counters().exits - exits;
        outcome
    }
}

/// Runs to the end and gathers what happened.
pub fn finish(machine: &mut Machine) -> Outcome {
    let mut gatherer = Gatherer::default();
    let stop = machine.run(&Until::END, &mut gatherer).unwrap();
    gatherer.finish(machine, &stop)
}
