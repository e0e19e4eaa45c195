//! The other end of the daemon's socket for charon's plugin: requests and answers, one at a time.

use std::io::{Error, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use charon_link::{
    Answer, Charon, CharonId, MAX_MESSAGE, Request, Status, Told, decode_told, encode_request,
};
use socket2::{Domain, SockAddr, Socket, Type};

use super::super::BenchError;
use super::rows::{Kind, Times};

/// Time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection that has said hello.
pub(super) struct Plugin {
    socket: Socket,
    number: u32,
    incarnation: u64,
    buffer: Vec<u8>,
}

impl Plugin {
    /// Connects to the daemon, as a charon that has nothing yet.
    ///
    /// # Errors
    /// [`BenchError::System`].
    pub(super) fn connect(path: &Path) -> Result<Plugin, BenchError> {
        let failed = BenchError::system("the socket for charon");
        let connected = || {
            let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.connect(&SockAddr::unix(path)?)?;
            Ok::<Socket, Error>(socket)
        };
        let socket = connected().map_err(failed)?;
        let mut plugin = Plugin { socket, number: 0, incarnation: 0, buffer: vec![0; MAX_MESSAGE] };
        let (charon, version) = ("bench".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        let hello = Charon { id: CharonId([1; 16]), charon, plugin: version };
        plugin.done(&Request::Hello(hello))?;
        plugin.done(&Request::Resumed)?;
        Ok(plugin)
    }

    /// Asks for something that must be done, and notes the time until the answer.
    ///
    /// # Errors
    /// [`BenchError::System`]: no answer, or another one.
    pub(super) fn timed(
        &mut self,
        kind: Kind,
        request: &Request,
        times: &mut Times,
    ) -> Result<Answer, BenchError> {
        let began = Instant::now();
        let answer = self.done(request)?;
        times.note(kind, began.elapsed());
        Ok(answer)
    }

    /// Asks for something that must be done.
    fn done(&mut self, request: &Request) -> Result<Answer, BenchError> {
        let asked = self.ask(request).map_err(BenchError::system("asking as charon"))?;
        match asked.status {
            Status::Done => Ok(asked),
            status => {
                let why = format!("{status:?}: {}", asked.text);
                Err(BenchError::system("asking as charon")(Error::other(why)))
            }
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, Error> {
        self.number += 1;
        let message = encode_request(self.number, self.incarnation, request);
        (&self.socket).write_all(&message)?;
        loop {
            let got = (&self.socket).read(&mut self.buffer)?;
            let (header, told) = decode_told(&self.buffer[..got]).map_err(Error::other)?;
            if let Told::Answer(answer) = told
                && header.number == self.number
            {
                self.incarnation = header.incarnation;
                return Ok(answer);
            }
        }
    }
}
