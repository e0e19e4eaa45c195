//! Sites with their daemons: what the demonstration and the tests have in common.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::capture::{Capture, Scope};
use crate::configuration::{self, GatewayFile};
use crate::sites::{BRIDGE, Plan, Shape, Site, Sites};
use crate::stream::Stream;
use crate::{Daemon, LabError, Programs};

/// Sites, the configuration of each gateway, and the daemons that run. Sites are counted from 1.
#[derive(Debug)]
pub struct Gateways {
    // Torn down in this order: daemons before their namespaces.
    daemons: Vec<Option<Daemon>>,
    files: Vec<GatewayFile>,
    /// The namespaces.
    pub sites: Sites,
    /// Our programs.
    pub programs: Programs,
    captures: u32,
}

impl Gateways {
    /// Builds the sites and writes a configuration for each gateway that protects everything
    /// between the sites with fresh keys, over IPv4 outside. No daemon runs yet.
    ///
    /// # Errors
    /// As [`Sites::build`], [`Programs::find`] and [`configuration::join`].
    pub fn build(plan: Plan) -> Result<Gateways, LabError> {
        let programs = Programs::find()?;
        let sites = Sites::build(plan)?;
        let mut files = sites
            .all()
            .iter()
            .map(|site| GatewayFile::new(&sites, site))
            .collect::<Result<Vec<_>, _>>()?;
        match plan.shape {
            Shape::Mesh => mesh(&programs, &sites, &mut files)?,
            Shape::Hub => hub(&programs, &sites, &mut files)?,
        }
        for file in &files {
            file.write()?;
        }
        let daemons = files.iter().map(|_| None).collect();
        Ok(Gateways { daemons, files, sites, programs, captures: 0 })
    }

    /// The configuration of gateway `number`.
    ///
    /// # Panics
    /// If there is none, as all functions here that take a number.
    pub fn file(&self, number: u8) -> &GatewayFile {
        &self.files[place(number)]
    }

    /// The configuration of gateway `number`, to be changed; it is written when the daemon is
    /// started.
    pub fn file_mut(&mut self, number: u8) -> &mut GatewayFile {
        &mut self.files[place(number)]
    }

    /// Site `number`.
    pub fn site(&self, number: u8) -> &Site {
        self.sites.site(number)
    }

    /// The daemon of gateway `number`.
    ///
    /// # Errors
    /// [`LabError::Ended`] if it does not run.
    pub fn daemon(&self, number: u8) -> Result<&Daemon, LabError> {
        self.daemons[place(number)].as_ref().ok_or_else(|| LabError::Ended {
            command: format!("lockgated of {}", self.file(number).name()),
            output: String::new(),
        })
    }

    /// The daemon of gateway `number`, to wait for its messages.
    ///
    /// # Errors
    /// As [`Gateways::daemon`].
    pub fn daemon_mut(&mut self, number: u8) -> Result<&mut Daemon, LabError> {
        let name = self.file(number).name().to_owned();
        self.daemons[place(number)].as_mut().ok_or_else(|| LabError::Ended {
            command: format!("lockgated of {name}"),
            output: String::new(),
        })
    }

    /// Starts a daemon, waits until it is ready, and returns when it was started.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start(&mut self, number: u8) -> Result<Instant, LabError> {
        let gateway = &self.sites.site(number).gateway;
        let daemon = Daemon::start(&self.programs, gateway, &self.files[place(number)])?;
        let started = daemon.started();
        self.daemons[place(number)] = Some(daemon);
        Ok(started)
    }

    /// Starts a daemon with its file as it stands, which [`Gateways::start`] would write anew, and
    /// waits until it is ready.
    ///
    /// # Errors
    /// As [`Daemon::launch`] and [`Daemon::wait_ready`].
    pub fn start_as_it_is(&mut self, number: u8) -> Result<(), LabError> {
        let gateway = &self.sites.site(number).gateway;
        let mut daemon = Daemon::launch(&self.programs, gateway, &self.files[place(number)])?;
        daemon.wait_ready()?;
        self.daemons[place(number)] = Some(daemon);
        Ok(())
    }

    /// Starts all daemons.
    ///
    /// # Errors
    /// As [`Gateways::start`].
    pub fn start_all(&mut self) -> Result<(), LabError> {
        (1..=self.files.len() as u8).try_for_each(|number| self.start(number).map(drop))
    }

    /// Kills a daemon as a crash would; nothing if it does not run.
    pub fn kill(&mut self, number: u8) {
        if let Some(mut daemon) = self.take(number) {
            daemon.kill();
        }
    }

    /// Gives a daemon away, to be ended by the caller.
    pub fn take(&mut self, number: u8) -> Option<Daemon> {
        self.daemons[place(number)].take()
    }

    /// Starts a capture of the wire.
    ///
    /// # Errors
    /// As [`Capture::start`].
    pub fn capture(&mut self, scope: Scope) -> Result<Capture, LabError> {
        self.captures += 1;
        let name = format!("wire-{}", self.captures);
        Capture::start(&self.sites.wire, BRIDGE, scope, (self.directory(), &name))
    }

    /// Directory of captures; removed with everything else.
    pub fn directory(&self) -> &Path {
        self.sites.laboratory.directory()
    }

    /// A steady stream between the hosts of two sites, over IPv4.
    ///
    /// # Errors
    /// As [`Stream::start`].
    pub fn stream(&self, from: u8, to: u8, interval: Duration) -> Result<Stream, LabError> {
        const BYTES: usize = 64;
        let [from, to] =
            [from, to].map(|number| (&self.site(number).host, IpAddr::from([10, number, 0, 10])));
        Stream::start(from, to, BYTES, interval)
    }

    /// The last `lines` lines of a daemon's log; empty if it does not run.
    pub fn log(&self, number: u8, lines: usize) -> Vec<String> {
        let log = self.daemons[place(number)].as_ref().map(Daemon::log).unwrap_or_default();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].iter().map(|&line| line.to_owned()).collect()
    }
}

fn place(number: u8) -> usize {
    usize::from(number) - 1
}

/// Every gateway is every other's peer, for the two sites' networks.
fn mesh(programs: &Programs, sites: &Sites, files: &mut [GatewayFile]) -> Result<(), LabError> {
    for second in 1..files.len() {
        for first in 0..second {
            let [a, b] = [&sites.all()[first], &sites.all()[second]];
            let networks = [a.networks().to_vec(), b.networks().to_vec()];
            let (head, tail) = files.split_at_mut(second);
            let pair = [&mut head[first], &mut tail[0]];
            configuration::join(programs, pair, [a.wan_v4(), b.wan_v4()], networks)?;
        }
    }
    Ok(())
}

/// Gateway 1 is everybody's only peer and passes on between them.
fn hub(programs: &Programs, sites: &Sites, files: &mut [GatewayFile]) -> Result<(), LabError> {
    let (hub, spokes) = files.split_first_mut().expect("a plan has two sites at least");
    for (spoke, site) in spokes.iter_mut().zip(&sites.all()[1..]) {
        let others = sites.all().iter().filter(|other| other.number() != site.number());
        let beyond: Vec<String> = others.flat_map(Site::networks).collect();
        let outer = [sites.site(1).wan_v4(), site.wan_v4()];
        let networks = [beyond, site.networks().to_vec()];
        configuration::join(programs, [&mut *hub, spoke], outer, networks)?;
    }
    Ok(())
}
