//! Virtual networks of configurations that come and go, with one table of endpoints for all.

use std::sync::Arc;

use config::{DirectUse, OverlaySettings, Validated};
use dataplane::{Overlay, OverlayId, Overlays, PortId, VirtualNetwork};
use endpoints::{Book, Table};

use crate::port_slots::PortSlots;

/// The reason why there is no table of endpoints.
#[derive(Debug, thiserror::Error)]
pub enum EndpointsError {
    /// There is no random number for it: the kernel refuses one.
    #[error("no random number for the table of endpoints: {0}")]
    NoSecret(getrandom::Error),
    /// There is no memory for it.
    #[error(
        "no room for {count} endpoints: {error}; write a smaller number into [store] endpoints"
    )]
    NoRoom {
        /// Endpoints that there was to be room for.
        count: u32,
        /// The reason.
        error: std::io::Error,
    },
}

/// The table of endpoints, once a configuration has virtual networks.
#[derive(Default)]
pub(crate) struct SharedEndpoints {
    table: Option<Arc<Table>>,
    /// Until somebody takes it.
    book: Option<Book>,
}

impl SharedEndpoints {
    /// Returns the overlays of a configuration; `None`: it has none. The table of endpoints is made
    /// for the first that has some, by the settings of that one; it stays, with what is in it, as
    /// long as the daemon runs.
    ///
    /// # Errors
    /// [`EndpointsError::NoSecret`], [`EndpointsError::NoRoom`]: what was there stays.
    pub(crate) fn for_configuration(
        &mut self,
        config: &Validated,
        slots: &PortSlots,
    ) -> Result<Option<Arc<Overlays>>, EndpointsError> {
        if config.overlays.is_empty() {
            return Ok(None);
        }
        let table = match &self.table {
            Some(table) => table.clone(),
            None => {
                let mut secret = [0; 32];
                getrandom::fill(&mut secret).map_err(EndpointsError::NoSecret)?;
                let book = book(config, &secret)?;
                let table = book.table().clone();
                (self.table, self.book) = (Some(table.clone()), Some(book));
                table
            }
        };
        let ports: Vec<PortId> = slots.ports().collect();
        Ok(Some(overlays(config, table, &ports, |vni| slots.attachment(vni)).into()))
    }

    /// Forgets the table, which nobody fills: the next configuration with virtual networks has
    /// another one.
    pub(crate) fn forget(&mut self) {
        *self = SharedEndpoints::default();
    }

    /// Takes the writer of the table, once: whoever changes endpoints has it from then on.
    pub(crate) fn take_book(&mut self) -> Option<Book> {
        self.book.take()
    }
}

/// The writer of an empty table of the size that a configuration says.
pub(crate) fn book(config: &Validated, secret: &[u8; 32]) -> Result<Book, EndpointsError> {
    let count = config.store.endpoints;
    match Table::new(count as usize, secret) {
        Ok(table) => Ok(Book::new(table, count as usize)),
        Err(error) => Err(EndpointsError::NoRoom { count, error }),
    }
}

/// The overlays and networks of a configuration. `ports` are those of the file, as slots;
/// `attachment` says under which number rules name a network.
pub(crate) fn overlays(
    config: &Validated,
    endpoints: Arc<Table>,
    ports: &[PortId],
    attachment: impl Fn(wire::Vni) -> Option<u16>,
) -> Overlays {
    let overlay = |of: &OverlaySettings| Overlay {
        name: of.name.clone(),
        kind: of.kind,
        udp_port: of.udp_port,
        port: ports[usize::from(of.port.0)],
        entrances: of.entrances.clone(),
        direct_port: (of.direct == DirectUse::On).then_some(of.direct_port),
    };
    let networks = config.networks.iter().map(|network| VirtualNetwork {
        vni: network.vni,
        overlay: OverlayId(network.overlay.0),
        attachment: attachment(network.vni),
        source_check: network.source_check,
    });
    Overlays::new(config.overlays.iter().map(overlay).collect(), networks, endpoints)
}
