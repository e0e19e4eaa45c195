//! Stream sockets that bring and take lines, and their listeners. Nothing waits here.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use card_link::{LineError, Lines};
use rustix::event::PollFlags;
use rustix::fs::Mode;
use rustix::process::umask;
use zeroize::Zeroizing;

use crate::failure::Failure;

/// Bytes that are read at once.
const PIECE: usize = 64 << 10;
/// Bytes that wait to be taken by the other side, above which nothing more is read from it.
const MOST_WAITING: usize = 1 << 20;

/// A socket in the file system, removed when it is dropped.
pub(crate) struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Serves on a path; a socket on which nobody serves any more is replaced.
    ///
    /// # Errors
    /// [`Failure::Served`], [`Failure::File`].
    pub(crate) fn open(path: &Path) -> Result<Listener, Failure> {
        let file = |source| Failure::File { path: path.to_owned(), source };
        match UnixStream::connect(path) {
            Ok(_) => return Err(Failure::Served { path: path.to_owned() }),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(file)?;
            }
            Err(_) => {}
        }
        // Who may give rules decides what is tagged, and with SAs come keys: from the first moment
        // on the socket is its owner's alone. The process has one thread.
        let before = umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
        let bound = UnixListener::bind(path);
        umask(before);
        let listener = Listener { listener: bound.map_err(file)?, path: path.to_owned() };
        listener.listener.set_nonblocking(true).map_err(file)?;
        Ok(listener)
    }

    /// The next connection that waits; `None`: there is none.
    pub(crate) fn accept(&self) -> Option<UnixStream> {
        let (stream, _) = self.listener.accept().ok()?;
        stream.set_nonblocking(true).ok().map(|()| stream)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A connection.
pub(crate) struct Connection {
    stream: UnixStream,
    lines: Lines,
    /// Bytes that the other side has not taken.
    out: Vec<u8>,
    input: Input,
}

/// The other side's end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Input {
    Open,
    /// It sends nothing more.
    Ended,
    /// It is gone.
    Broken,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream, lines: Lines) -> Connection {
        Connection { stream, lines, out: Vec::new(), input: Input::Open }
    }

    /// Reads what is there, up to a piece. Take the lines afterwards.
    pub(crate) fn fill(&mut self) {
        if self.input != Input::Open || self.out.len() > MOST_WAITING {
            return;
        }
        // It may hold keys.
        let mut piece = Zeroizing::new(vec![0; PIECE]);
        match (&self.stream).read(&mut piece) {
            Ok(0) => self.input = Input::Ended,
            Ok(count) => self.lines.extend(&piece[..count]),
            Err(error) if is_for_later(&error) => {}
            Err(_) => self.input = Input::Broken,
        }
    }

    /// The next line that is there as a whole.
    ///
    /// # Errors
    /// [`LineError::TooLong`]: the connection is of no use.
    pub(crate) fn take(&mut self) -> Result<Option<&[u8]>, LineError> {
        self.lines.take()
    }

    /// Adds bytes to what the other side is to take.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Gives the other side as much as it takes.
    pub(crate) fn push(&mut self) {
        let mut written = 0;
        while written < self.out.len() && self.input != Input::Broken {
            match (&self.stream).write(&self.out[written..]) {
                Ok(count) => written += count,
                Err(error) if is_for_later(&error) => break,
                Err(_) => self.input = Input::Broken,
            }
        }
        self.out.drain(..written);
    }

    /// Returns whether nothing more comes of the connection.
    pub(crate) fn is_over(&self) -> bool {
        match self.input {
            Input::Open => false,
            Input::Ended => self.out.is_empty(),
            Input::Broken => true,
        }
    }

    /// The events that the connection waits for.
    pub(crate) fn awaited(&self) -> PollFlags {
        let mut awaited = PollFlags::empty();
        if self.input == Input::Open && self.out.len() <= MOST_WAITING {
            awaited |= PollFlags::IN;
        }
        if !self.out.is_empty() {
            awaited |= PollFlags::OUT;
        }
        awaited
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
