//! The platform's ports. Every value is the guest's: wrong ones end the run, never the monitor.

use rewind_platform::{PLATFORM_VERSION, port};

use super::{EndReason, GuestFault, Machine, MachineError, RecordSink};
use crate::{
    address::{Gpa, Gva},
    block::{self, Served},
    engine::{Access, WatchHit, WatchRange},
};

/// Console text kept for the message of a panic.
const CONSOLE_KEPT: usize = 8 << 10;

/// Ports of the platform: anything in here that is not defined is a fault. Elsewhere are the legacy ports of a
/// PC, which the kernel may probe: they read as ones and swallow writes.
const PLATFORM_PORTS: std::ops::Range<u16> = port::PLATFORM..port::DEVICE + 4;

/// What a port access means for the run.
pub(super) enum Effect {
    /// Nothing more.
    Continue,
    /// A committed step asks to stop.
    Stop,
    /// Init asks for its job.
    Job,
    /// It asks for outside input that no log has.
    Input,
    /// The end.
    End(EndReason),
    /// Watched memory was filled from an image.
    Watch(Vec<WatchHit>),
}

fn fault(port: u16, what: impl Into<String>) -> GuestFault {
    GuestFault::Port { port, what: what.into() }
}

impl Machine {
    /// An `out`. Outer error: the host's; inner: the guest's.
    pub(super) fn port_out(
        &mut self,
        port: u16,
        size: u8,
        data: &[u8],
        sink: &mut dyn RecordSink,
    ) -> Result<Result<Effect, GuestFault>, MachineError> {
        if !PLATFORM_PORTS.contains(&port) {
            return Ok(Ok(Effect::Continue));
        }
        if port == port::CONSOLE {
            if size != 1 {
                return Ok(Err(fault(port, format!("a write of {size} bytes an element, not 1"))));
            }
            self.keep_console(data);
            sink.console(data);
            return Ok(Ok(Effect::Continue));
        }
        let Ok(value) = <[u8; 4]>::try_from(data) else {
            return Ok(Err(fault(port, format!("a write of {} bytes, not 4", data.len()))));
        };
        if size != 4 {
            return Ok(Err(fault(port, format!("a write of {size} bytes an element, not 4"))));
        }
        let value = u32::from_le_bytes(value);
        Ok(match port {
            port::PLATFORM => self.publish_state(value).map(|()| Effect::Continue),
            _ if self.state_page.is_none() && port != port::END => {
                Err(fault(port, "used before the state page was published"))
            }
            port::STOP => Ok(Effect::Stop),
            port::RING => Ok(Effect::Continue),
            port::DEVICE if self.input_wanted()? => Ok(Effect::Continue),
            port::DEVICE => Ok(Effect::Input),
            port::BLOCK => match block::serve(&self.memory, &mut self.images, value) {
                Ok(Served::Done(filled)) => Ok(self.filled(&filled)),
                Ok(Served::Unreadable { image, source }) => {
                    return Err(MachineError::Image { image, source });
                }
                Err(fault) => Err(fault),
            },
            port::JOB => Ok(Effect::Job),
            port::END => EndReason::from_port(value, &self.console)
                .map(Effect::End)
                .ok_or_else(|| fault(port, format!("unknown reason {value}"))),
            _ => Err(fault(port, "there is no such port")),
        })
    }

    /// An `in`: the value, for the engine.
    pub(super) fn port_in(&mut self, port: u16, size: u8) -> Result<u32, GuestFault> {
        match port {
            port::PLATFORM if size == 4 => Ok(PLATFORM_VERSION),
            _ if PLATFORM_PORTS.contains(&port) => Err(fault(port, format!("a read of {size} bytes"))),
            _ => Ok(u32::MAX),
        }
    }

    /// The watches that the pieces of memory just filled from an image hit.
    fn filled(&mut self, filled: &[(Gpa, u64)]) -> Effect {
        let mut hits = Vec::new();
        for watch in self.watches.iter().filter(|watch| watch.write) {
            let WatchRange::Physical(at) = watch.range else { continue };
            for (start, len) in filled {
                let first = start.0.max(at.0);
                let end = start.0.saturating_add(*len).min(at.0.saturating_add(watch.len));
                if first < end {
                    hits.push(WatchHit {
                        rip: Gva(0),
                        address: Gva(0),
                        physical: Gpa(first),
                        size: u16::try_from(end - first).unwrap_or(u16::MAX),
                        access: Access::Write,
                        user: false,
                        since_user: self.engine.counters().since_user.unwrap_or_default(),
                        device: true,
                    });
                }
            }
        }
        if hits.is_empty() { Effect::Continue } else { Effect::Watch(hits) }
    }

    fn keep_console(&mut self, text: &[u8]) {
        self.console.extend_from_slice(&text[text.len().saturating_sub(CONSOLE_KEPT)..]);
        let excess = self.console.len().saturating_sub(CONSOLE_KEPT);
        self.console.drain(..excess);
    }
}
