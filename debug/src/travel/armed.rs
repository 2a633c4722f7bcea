//! What a search stops for: the breakpoints and watchpoints of one process, on whatever machine is searched.

use std::collections::BTreeSet;

use rewind_platform::state::{Fact, ST_TID};
use run::scan::Look;
use vmm::{
    Machine,
    address::Gva,
    engine::{Access, Watch, WatchHit, WatchRange},
};

use super::{Travel, Travelled, read_of};
use crate::{look, process};

/// What a watchpoint watches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Writes that change the value.
    Write,
    /// Reads.
    Read,
    /// Reads and writes.
    Access,
}

/// Memory of the process to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchpoint {
    /// First byte.
    pub at: Gva,
    /// Bytes.
    pub len: u64,
    /// For what.
    pub kind: Kind,
}

/// Largest watched range whose value is compared; of a larger one every write counts.
const MOST_COMPARED: u64 = 1 << 16;

/// The values of watchpoints that stop at changes, as last seen.
pub(super) type Values = Vec<Option<Vec<u8>>>;

/// See the module.
#[derive(Debug)]
pub(super) struct Armed {
    pid: u32,
    tids: BTreeSet<u32>,
    breakpoints: Vec<Gva>,
    watchpoints: Vec<Watchpoint>,
}

impl Travel<'_> {
    pub(super) fn armed(&self) -> Armed {
        Armed {
            pid: self.pid,
            tids: self.history.tids.clone(),
            breakpoints: self.breakpoints.keys().map(|at| Gva(*at)).collect(),
            watchpoints: self.watchpoints.clone(),
        }
    }
}

impl Armed {
    /// What the engine looks for.
    pub(super) fn look(&self) -> Look {
        let watch = |point: &Watchpoint| Watch {
            range: WatchRange::Virtual(point.at),
            len: point.len,
            read: point.kind != Kind::Write,
            write: point.kind != Kind::Read,
        };
        Look { watches: self.watchpoints.iter().map(watch).collect(), breakpoints: self.breakpoints.clone() }
    }

    /// The values where the machine is.
    pub(super) fn values(&self, machine: &Machine) -> Values {
        self.watchpoints.iter().map(|point| self.value_of(machine, point)).collect()
    }

    fn value_of(&self, machine: &Machine, point: &Watchpoint) -> Option<Vec<u8>> {
        if point.kind != Kind::Write || point.len > MOST_COMPARED {
            return None;
        }
        let mut value = vec![0; point.len as usize];
        read_of(machine, self.pid, point.at, &mut value).then_some(value)
    }

    /// A breakpoint was met by a thread of the process?
    pub(super) fn met(&self, machine: &Machine, user: bool) -> bool {
        user && self.tids.contains(&(machine.state_u64(ST_TID).unwrap_or(0) as u32))
    }

    /// The accesses of one instruction: the watchpoint of the process that one of them triggers, the thread, and
    /// whether it did it itself, in user mode.
    pub(super) fn triggered(
        &self,
        machine: &mut Machine,
        accesses: &[WatchHit],
        values: &mut Values,
    ) -> Travelled<Option<(Watchpoint, u32, bool)>> {
        let Some(first) = accesses.first() else { return Ok(None) };
        let (tid, ours) = if first.user {
            let tid = machine.state_u64(ST_TID).unwrap_or(0) as u32;
            (tid, self.tids.contains(&tid))
        } else {
            let (tid, pid) = current(machine)?;
            (tid, pid == self.pid)
        };
        if !ours {
            return Ok(None);
        }
        let mut triggered = None;
        for (point, known) in self.watchpoints.iter().zip(values) {
            let touched = |access: &&WatchHit| {
                let wanted = match access.access {
                    Access::Write => point.kind != Kind::Read,
                    Access::Read => point.kind != Kind::Write,
                    Access::Execute => false,
                };
                wanted
                    && access.address.0 < point.at.0.saturating_add(point.len)
                    && point.at.0 < access.address.0.saturating_add(u64::from(access.size))
            };
            if !accesses.iter().any(|access| touched(&access)) {
                continue;
            }
            let now = self.value_of(machine, point);
            let unchanged = now.is_some() && now == *known;
            *known = now;
            if !unchanged {
                triggered.get_or_insert(*point);
            }
        }
        Ok(triggered.map(|point| (point, tid, first.user)))
    }
}

/// Thread and process id of the task on the CPU.
fn current(machine: &mut Machine) -> Travelled<(u32, u32)> {
    let cpu = machine.cpu()?;
    let Some(kernel) = look::kernel(machine) else { return Ok((0, 0)) };
    let task = process::current(&kernel, &cpu)?;
    Ok((kernel.field32(task, Fact::TaskPid)?, kernel.field32(task, Fact::TaskTgid)?))
}
