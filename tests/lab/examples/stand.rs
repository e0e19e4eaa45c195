//! Two gateways with their daemons, left standing until Ctrl-C or so many seconds: for looking
//! around with `ip netns exec`.

use std::time::Duration;

use netlab::sites::Plan;
use netlab::{Gateways, LabError, interrupt};

fn main() -> Result<(), LabError> {
    interrupt::listen()?;
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(600);
    let mut gateways = Gateways::build(Plan::default())?;
    gateways.start_all()?;
    for site in gateways.sites.all() {
        let number = site.number();
        println!("{} {}", site.host.name(), site.host_v4());
        println!("{} {}", site.gateway.name(), gateways.file(number).path().display());
    }
    println!("{}", gateways.sites.wire.name());
    match interrupt::sleep(Duration::from_secs(seconds)) {
        Ok(()) | Err(LabError::Interrupted) => {}
        Err(error) => return Err(error),
    }
    for site in gateways.sites.all() {
        print!("{}", gateways.log(site.number(), 100).join("\n"));
    }
    println!();
    Ok(())
}
