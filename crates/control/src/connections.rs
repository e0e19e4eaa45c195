//! The table of connections over configurations that come and go: one for all of them.

use std::sync::Arc;

use config::{ConnectionSettings, Validated};
use dataplane::connections::Connections;

use crate::compile::CompileError;

/// The table, once a configuration tracks connections.
#[derive(Default)]
pub(crate) struct SharedConnections(Option<(ConnectionSettings, Arc<Connections>)>);

impl SharedConnections {
    /// Returns the table for a configuration. It is made for the first that tracks connections, by
    /// the settings of that one; from then on every configuration has it, so that connections
    /// outlast a configuration without `reflect` rules. A table that nobody holds was made for a
    /// configuration that was not applied: it is made again if the settings are others.
    ///
    /// # Errors
    /// [`CompileError::NoSecret`]: what was there stays.
    pub(crate) fn for_configuration(
        &mut self,
        config: &Validated,
    ) -> Result<Option<Arc<Connections>>, CompileError> {
        let settings = config.connections;
        let is_ours_alone = |table: &Arc<Connections>| Arc::strong_count(table) == 1;
        match &self.0 {
            Some((made_by, table)) if *made_by == settings || !is_ours_alone(table) => {}
            _ if !config.tracks_connections() => self.0 = None,
            _ => self.0 = Some((settings, made(settings)?)),
        }
        Ok(self.0.as_ref().map(|(_, table)| table.clone()))
    }
}

/// An empty table.
fn made(settings: ConnectionSettings) -> Result<Arc<Connections>, CompileError> {
    let ConnectionSettings { limits, timeouts } = settings;
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(CompileError::NoSecret)?;
    Ok(Connections::new(limits, timeouts, &secret).into())
}
