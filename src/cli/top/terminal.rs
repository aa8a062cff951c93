//! The terminal: its own screen, no echo, keys one by one. It is as before when this is dropped.

use std::io::{self, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::frame::Frame;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// `q`, Ctrl-C, or a signal to end.
    Quit,
    Sort,
    /// An arrow or a page: this many lines down.
    Scroll(isize),
    Other,
}

pub(super) struct Terminal {
    before: Termios,
    /// What would end the process without restoring the terminal.
    signals: [Signal; 3],
    runtime: Runtime,
    shown: Option<(Size, String)>,
}

impl Terminal {
    pub(super) fn open() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let inside = runtime.enter();
        let signals = [
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ];
        drop(inside);
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Flush, &raw)?;
        // From here on dropping it restores the modes.
        let terminal = Self {
            before,
            signals,
            runtime,
            shown: None,
        };
        write("\x1b[?1049h\x1b[?25l\x1b[2J")?;
        Ok(terminal)
    }

    /// Shows a frame of the terminal's size, if it differs from what is shown.
    pub(super) fn show(&mut self, frame: impl FnOnce(Size) -> Frame) -> io::Result<()> {
        let size = tcgetwinsize(io::stdout())?;
        let size = Size {
            columns: usize::from(size.ws_col).max(20),
            rows: usize::from(size.ws_row).max(5),
        };
        let text = frame(size).for_terminal();
        let next = Some((size, text));
        if self.shown != next {
            let (_, text) = next.as_ref().expect("it was just made");
            // In one piece, so that no half of a frame is seen.
            write(&format!("\x1b[?2026h\x1b[H{text}\x1b[J\x1b[?2026l"))?;
            self.shown = next;
        }
        Ok(())
    }

    /// Waits for a key; `None`: none came within `span`, or within a quarter of a second, after
    /// which the size may have changed.
    pub(super) fn wait(&mut self, span: Duration) -> io::Result<Option<Key>> {
        let [terminate, interrupt, hang_up] = &mut self.signals;
        let ended = self.runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => true,
                _ = interrupt.recv() => true,
                _ = hang_up.recv() => true,
                () = tokio::time::sleep(Duration::from_millis(1)) => false,
            }
        });
        if ended {
            return Ok(Some(Key::Quit));
        }
        let stdin = io::stdin();
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: span.min(LOOK_EVERY).subsec_nanos().into(),
        };
        let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut polled, Some(&timeout)) {
            // A signal is noticed at the next call.
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut bytes = [0; 64];
        let count = rustix::io::read(&stdin, &mut bytes)?;
        Ok(Some(key(&bytes[..count])))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = write("\x1b[?25h\x1b[?1049l");
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.before);
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The key of what a terminal sends for it; nothing is sent by one that is gone.
fn key(bytes: &[u8]) -> Key {
    match bytes {
        b"" => Key::Quit,
        b"s" | b"S" => Key::Sort,
        b"j" | b"\x1b[B" | b"\x1bOB" => Key::Scroll(1),
        b"k" | b"\x1b[A" | b"\x1bOA" => Key::Scroll(-1),
        b" " | b"\x1b[6~" => Key::Scroll(PAGE),
        b"\x1b[5~" => Key::Scroll(-PAGE),
        _ if bytes.iter().any(|byte| QUIT.contains(byte)) => Key::Quit,
        _ => Key::Other,
    }
}

const PAGE: isize = 10;

const QUIT: [u8; 4] = [b'q', b'Q', 3, 4];

/// How often the size and the signals are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
