//! The connection: packets in and out. What `gdbstub` does not know (siginfo, passed signals, thread-local
//! addresses, the thread that stopped, exec events) is answered here; everything else is handed to it.

use std::{
    fmt::Write as _,
    io::{self, Read, Write},
    sync::mpsc,
};

use gdbstub::{
    conn::Connection,
    stub::{GdbStub, GdbStubError, MultiThreadStopReason, state_machine::GdbStubStateMachine},
};

use super::{session::Session, signals, target::Never};

/// Why serving ended other than by gdb's leave.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// gdb sent something that is no protocol.
    #[error("gdb: {0}")]
    Protocol(String),
    /// The connection.
    #[error("the connection to gdb: {0}")]
    Connection(#[from] io::Error),
}

impl From<GdbStubError<Never, io::Error>> for ServeError {
    fn from(error: GdbStubError<Never, io::Error>) -> Self {
        ServeError::Protocol(error.to_string())
    }
}

/// Largest packet; what gdb reads at once (files, memory) is bounded by it.
const PACKET: usize = 1 << 16;

/// What gdb sends.
enum Frame {
    /// A packet's payload.
    Packet(Vec<u8>),
    /// The bytes make no sense.
    Garbage,
}

/// Splits the stream into packets; Ctrl-C is told at once, from this thread.
fn split(mut reader: impl Read, frames: &mpsc::Sender<Frame>, interrupt: &dyn Fn()) {
    let mut buffer = [0; 4096];
    let mut packet: Option<Vec<u8>> = None;
    // Bytes of the checksum still to come.
    let mut rest = 0;
    loop {
        let got = match reader.read(&mut buffer) {
            Ok(0) => return,
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        for &byte in &buffer[..got] {
            if rest > 0 {
                // The transport is reliable (a socket): the checksum adds nothing.
                rest -= 1;
                if rest == 0
                    && let Some(done) = packet.take()
                    && frames.send(Frame::Packet(done)).is_err()
                {
                    return;
                }
                continue;
            }
            match (&mut packet, byte) {
                (None, b'$') => packet = Some(Vec::new()),
                (None, 0x03) => interrupt(),
                (None, _) => {}
                (Some(_), b'#') => rest = 2,
                (Some(open), _) if open.len() >= 2 * PACKET => {
                    let _ = frames.send(Frame::Garbage);
                    return;
                }
                (Some(open), byte) => open.push(byte),
            }
        }
    }
}

/// The way out, packet by packet.
struct Out<W> {
    writer: W,
    buffer: Vec<u8>,
    /// Acknowledge packets that are answered here.
    acknowledge: bool,
    /// Added to the next packet that begins with this byte.
    amend: Option<(u8, String)>,
    /// What is written is dropped.
    mute: bool,
}

fn checksum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte))
}

impl<W: Write> Out<W> {
    /// Sends a packet of our own.
    fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        if self.acknowledge {
            self.writer.write_all(b"+")?;
        }
        self.send_event(payload)
    }

    fn send_event(&mut self, payload: &[u8]) -> io::Result<()> {
        let mut packet = Vec::with_capacity(payload.len() + 4);
        packet.push(b'$');
        packet.extend_from_slice(payload);
        packet.extend_from_slice(format!("#{:02x}", checksum(payload)).as_bytes());
        self.writer.write_all(&packet)?;
        self.writer.flush()
    }

    /// Text on gdb's console; only while the target runs.
    fn console(&mut self, text: &str) -> io::Result<()> {
        let mut payload = String::from("O");
        for byte in text.bytes() {
            let _ = write!(payload, "{byte:02x}");
        }
        self.send_event(payload.as_bytes())
    }
}

impl<W: Write> Connection for Out<W> {
    type Error = io::Error;

    fn write(&mut self, byte: u8) -> io::Result<()> {
        self.buffer.push(byte);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut bytes = std::mem::take(&mut self.buffer);
        if self.mute {
            return Ok(());
        }
        let start = bytes.iter().position(|byte| *byte == b'$');
        if let Some(start) = start
            && let Some((first, text)) = &self.amend
            && bytes.get(start + 1) == Some(first)
            && let Some(end) = bytes.iter().rposition(|byte| *byte == b'#')
        {
            bytes.truncate(end);
            bytes.extend_from_slice(text.as_bytes());
            let sum = checksum(&bytes[start + 1..]);
            bytes.extend_from_slice(format!("#{sum:02x}").as_bytes());
            self.amend = None;
        }
        self.writer.write_all(&bytes)?;
        self.writer.flush()
    }
}

/// Serves one gdb until it leaves.
pub fn serve<R, W>(session: &mut Session<'_>, reader: R, writer: W) -> Result<(), ServeError>
where
    R: Read + Send + 'static,
    W: Write,
{
    let (send, frames) = mpsc::channel();
    let flag = session.travel.interrupted();
    let stop = session.travel.machine().interrupter();
    std::thread::spawn(move || {
        split(reader, &send, &|| {
            flag.store(true, std::sync::atomic::Ordering::SeqCst);
            stop.stop_now();
        });
    });
    let out = Out { writer, buffer: Vec::new(), acknowledge: true, amend: None, mute: false };
    let stub = GdbStub::builder(out).packet_buffer_size(PACKET).build();
    let stub = stub.map_err(|error| ServeError::Protocol(error.to_string()))?;
    let mut state = stub.run_state_machine(session)?;
    loop {
        state = match state {
            GdbStubStateMachine::Idle(mut idle) => {
                let payload = match frames.recv() {
                    Ok(Frame::Packet(payload)) => payload,
                    Ok(Frame::Garbage) => return Err(ServeError::Protocol("a packet without an end".into())),
                    Err(_) => return Ok(()),
                };
                match answer(session, idle.borrow_conn(), &payload)? {
                    Answer::Done => idle.into(),
                    Answer::Instead(payload) => feed(idle, session, &payload)?,
                    Answer::AndQuietly(payload) => {
                        idle.borrow_conn().mute = true;
                        let mut state = feed(idle, session, &payload)?;
                        if let GdbStubStateMachine::Idle(idle) = &mut state {
                            idle.borrow_conn().mute = false;
                        }
                        state
                    }
                }
            }
            GdbStubStateMachine::Running(mut running) => {
                let reason = session.go();
                for message in std::mem::take(&mut session.messages) {
                    running.borrow_conn().console(&message)?;
                }
                running.borrow_conn().amend = session.suffix.take().map(|text| (b'T', text));
                running.report_stop(session, reason)?
            }
            GdbStubStateMachine::CtrlCInterrupt(stopped) => {
                stopped.interrupt_handled(session, None::<MultiThreadStopReason<u64>>)?
            }
            GdbStubStateMachine::Disconnected(_) => return Ok(()),
        };
    }
}

/// What the front did with a packet.
enum Answer {
    /// Answered.
    Done,
    /// gdbstub is given this.
    Instead(Vec<u8>),
    /// Answered, and gdbstub is given this without its answer going out.
    AndQuietly(Vec<u8>),
}

type Idle<'a, 'h, W> = gdbstub::stub::state_machine::GdbStubStateMachineInner<
    'static,
    gdbstub::stub::state_machine::state::Idle<Session<'h>>,
    Session<'h>,
    Out<W>,
>;

/// Gives gdbstub a whole packet.
fn feed<'h, W: Write>(
    idle: Idle<'_, 'h, W>,
    session: &mut Session<'h>,
    payload: &[u8],
) -> Result<GdbStubStateMachine<'static, Session<'h>, Out<W>>, ServeError> {
    let mut packet = vec![b'$'];
    packet.extend_from_slice(payload);
    packet.extend_from_slice(format!("#{:02x}", checksum(payload)).as_bytes());
    let mut state: GdbStubStateMachine<'static, Session<'h>, Out<W>> = idle.into();
    for byte in packet {
        state = match state {
            GdbStubStateMachine::Idle(idle) => idle.incoming_data(session, byte)?,
            other => return Ok(other),
        };
    }
    Ok(state)
}

/// "p8c.8d" or "8d": the thread.
pub(super) fn thread_of(text: &str) -> Option<u32> {
    let tid = text.strip_prefix('p').map_or(text, |both| both.split_once('.').map_or("0", |(_, tid)| tid));
    u32::from_str_radix(tid, 16).ok().filter(|tid| *tid != 0)
}

/// A piece of `content` as qXfer asks for it: "offset,length" in hex.
fn piece(content: &[u8], range: &str) -> Vec<u8> {
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    let Some((Some(offset), Some(length))) =
        range.split_once(',').map(|(offset, length)| (number(offset), number(length)))
    else {
        return b"E01".to_vec();
    };
    let from = offset.min(content.len());
    let to = from.saturating_add(length.min(PACKET / 4)).min(content.len());
    let mut out = vec![if to == content.len() { b'l' } else { b'm' }];
    for &byte in &content[from..to] {
        // Binary: these are escaped (gdb's manual, "Binary Data").
        if matches!(byte, b'$' | b'#' | b'}' | b'*') {
            out.extend([b'}', byte ^ 0x20]);
        } else {
            out.push(byte);
        }
    }
    out
}

fn answer<W: Write>(
    session: &mut Session<'_>,
    out: &mut Out<W>,
    payload: &[u8],
) -> Result<Answer, ServeError> {
    let text = String::from_utf8_lossy(payload).into_owned();
    let reply = |out: &mut Out<W>, bytes: &[u8]| -> Result<Answer, ServeError> {
        out.send(bytes)?;
        Ok(Answer::Done)
    };
    if text == "?" {
        let (pid, tid) = (session.travel.pid(), session.stop_thread());
        let signal = session.signal_here().map_or(5, signals::to_gdb);
        out.send(format!("T{signal:02x}thread:p{pid:x}.{tid:x};").as_bytes())?;
        // gdb takes it that what follows is about this thread.
        return Ok(Answer::AndQuietly(format!("Hgp{pid:x}.{tid:x}").into_bytes()));
    }
    if let Some(features) = text.strip_prefix("qSupported:") {
        session.exec_events = features.split(';').any(|feature| feature == "exec-events+");
        let mut more = String::from(";QPassSignals+;qXfer:siginfo:read+;qXfer:threads:read+");
        if session.exec_events {
            more.push_str(";exec-events+");
        }
        out.amend = Some((b'P', more));
    } else if text == "QStartNoAckMode" {
        // Its own answer is still acknowledged, by gdbstub.
        out.acknowledge = false;
    } else if let Some(thread) = text.strip_prefix("Hg") {
        if let Some(tid) = thread_of(thread) {
            session.selected = tid;
        }
    } else if text == "Hc-1" || text.starts_with("Hcp") && text.ends_with("-1") {
        // gdbstub refuses to step back "all threads"; which one is known from what gdb looks at.
        return Ok(Answer::Instead(b"Hc0".to_vec()));
    } else if let Some(range) = text.strip_prefix("qXfer:siginfo:read::") {
        let info = session.signal_info();
        return reply(out, &info.map_or(b"E01".to_vec(), |info| piece(&info, range)));
    } else if let Some(range) = text.strip_prefix("qXfer:threads:read::") {
        return reply(out, &piece(session.threads_text().as_bytes(), range));
    } else if let Some(list) = text.strip_prefix("QPassSignals:") {
        let numbers = list.split(';').filter_map(|number| u32::from_str_radix(number, 16).ok());
        session.travel.pass_signals(numbers.filter_map(signals::from_gdb).collect());
        return reply(out, b"OK");
    } else if let Some(thread) = text.strip_prefix("qThreadExtraInfo,") {
        let described = thread_of(thread).and_then(|tid| session.describe(tid));
        let hex = described.unwrap_or_default().bytes().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        return reply(out, hex.as_bytes());
    } else if let Some(arguments) = text.strip_prefix("qGetTLSAddr:") {
        let at = session.thread_local(arguments);
        return reply(out, at.map_or("E01".to_owned(), |at| format!("{at:x}")).as_bytes());
    }
    Ok(Answer::Instead(payload.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_taken_apart_and_interrupts_told() {
        let (send, frames) = mpsc::channel();
        let told = std::cell::Cell::new(0);
        split(&b"+$qX#0f+\x03junk$a\x03b#00$c#"[..], &send, &|| told.set(told.get() + 1));
        drop(send);
        let packets: Vec<Vec<u8>> = frames
            .iter()
            .map(|frame| match frame {
                Frame::Packet(payload) => payload,
                Frame::Garbage => panic!("garbage"),
            })
            .collect();
        assert_eq!(packets, [b"qX".to_vec(), b"a\x03b".to_vec()]);
        assert_eq!(told.get(), 1);
    }

    #[test]
    fn a_packet_without_an_end_is_refused() {
        let (send, frames) = mpsc::channel();
        let mut long = vec![b'$'];
        long.resize(3 * PACKET, b'x');
        split(&long[..], &send, &|| ());
        assert!(matches!(frames.recv(), Ok(Frame::Garbage)));
    }

    #[test]
    fn replies_are_amended_with_their_checksum() {
        let mut out =
            Out { writer: Vec::new(), buffer: Vec::new(), acknowledge: false, amend: None, mute: false };
        out.amend = Some((b'T', "x;".into()));
        out.write_all(b"+$OK#9a").unwrap();
        out.flush().unwrap();
        out.write_all(b"$T05#b9").unwrap();
        out.flush().unwrap();
        assert_eq!(
            String::from_utf8(out.writer).unwrap(),
            format!("+$OK#9a$T05x;#{:02x}", checksum(b"T05x;"))
        );
    }

    #[test]
    fn ids_and_pieces() {
        assert_eq!(thread_of("p8c.8d"), Some(0x8d));
        assert_eq!(thread_of("8d"), Some(0x8d));
        assert_eq!(thread_of("p8c.-1"), None);
        assert_eq!(thread_of("0"), None);
        assert_eq!(piece(b"abc#", "1,2"), b"mbc");
        assert_eq!(piece(b"abc#", "2,ff"), b"lc}\x03");
        assert_eq!(piece(b"abc", "9,1"), b"l");
        assert_eq!(piece(b"abc", "x"), b"E01");
    }
}
