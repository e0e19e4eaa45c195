//! Live ports in network namespaces, each test in one of its own: packets come through the real
//! steering program, and from and to the Linux stack through a TUN netdev.

mod conserved;
mod place;
mod tap;
mod tun;
mod xdp;
