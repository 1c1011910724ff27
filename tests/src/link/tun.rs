//! Carries packets from one TUN device to another as a [`Line`] says.
//!
//! Packets keep the header of virtio-net, so that what the kernel would leave to a network card (cutting up
//! what is sent, checksums) it leaves to the other end's kernel here.

use super::line::Line;
use super::{Namespace, Shape};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::set_current_timer_slack;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::num::NonZero;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Of virtio-net.
const HEADER: usize = 10;
const LARGEST: usize = HEADER + (1 << 16);
/// Preamble, header, checksum and gap of one frame on Ethernet.
const FRAME_OVERHEAD: u64 = 38;
/// How often it is looked whether the link still is wanted.
const LOOK: Duration = Duration::from_millis(50);
/// The kernel hands over at most as much at once as the line carries in a part of a second like this.
const BURSTS_PER_SECOND: u64 = 10_000;
/// Packets that are taken in before those are handed on that are due.
const BATCH: usize = 64;

/// Both directions of a link. They end with it.
#[derive(Debug)]
pub(super) struct Emulator {
    ended: Arc<AtomicBool>,
    directions: Vec<JoinHandle<()>>,
}

impl Emulator {
    /// Makes `device` in both namespaces and carries what is sent through it.
    pub fn start(
        one: &Namespace,
        other: &Namespace,
        device: &str,
        shape: &Shape,
    ) -> io::Result<Self> {
        let ends = [one, other].map(|end| end.inside(|| open(device, shape.loss == 0.0)));
        let [here, there] = ends;
        let (here, there) = (Arc::new(here?), Arc::new(there?));
        if let Some(rate) = shape.rate {
            let burst = (rate / 8 / BURSTS_PER_SECOND)
                .clamp(3000, 65_536)
                .to_string();
            for end in [one, other] {
                end.ip(&["link", "set", device, "gso_max_size", &burst])?;
            }
        }
        let ended = Arc::new(AtomicBool::new(false));
        let directions = [(here.clone(), there.clone()), (there, here)];
        let carry = |(seed, (from, to)): (u64, (Arc<File>, Arc<File>))| {
            let (line, ended) = (Line::new(shape, seed), ended.clone());
            let name = thread::Builder::new().name("link".to_owned());
            name.spawn(move || carry(line, &from, &to, &ended))
        };
        let directions = (1..)
            .zip(directions)
            .map(carry)
            .collect::<io::Result<_>>()?;
        Ok(Self { ended, directions })
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for direction in self.directions.drain(..) {
            let _ = direction.join();
        }
    }
}

/// A TUN device of this thread's namespace. Only whole packets as they are on the wire can be lost one by one.
fn open(device: &str, offload: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK);
    let tun = options.open("/dev/net/tun")?;
    // SAFETY: all zeroes is a value of it.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: it reads and writes `request`, which is one.
    if unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let plain = libc::TUN_F_CSUM;
    let cut_up = libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_USO4 | libc::TUN_F_USO6;
    let wanted = if offload { plain | cut_up } else { plain };
    // SAFETY: it takes a number.
    if unsafe {
        libc::ioctl(
            tun.as_raw_fd(),
            libc::TUNSETOFFLOAD,
            libc::c_ulong::from(wanted),
        )
    } != 0
    {
        return Err(io::Error::last_os_error());
    }
    Ok(tun)
}

fn carry(mut line: Line<Vec<u8>>, from: &File, to: &File, ended: &AtomicBool) {
    // By default the kernel may be 50 µs late.
    let _ = set_current_timer_slack(NonZero::new(1000));
    let mut buffer = vec![0; LARGEST];
    while !ended.load(Ordering::Relaxed) {
        let taken = take_in(&mut line, from, &mut buffer);
        let now = Instant::now();
        let mut handed_on = 0;
        while let Some(packet) = line.receive(now) {
            // What the other end has no room for is lost, as it would be on a wire.
            let _ = (&mut &*to).write(&packet);
            handed_on += 1;
        }
        if taken == 0 && handed_on == 0 {
            wait(from, line.next_due());
        }
    }
}

fn take_in(line: &mut Line<Vec<u8>>, from: &File, buffer: &mut [u8]) -> usize {
    let mut packets = 0;
    while packets < BATCH {
        let Some(packet) = (&mut &*from)
            .read(buffer)
            .ok()
            .and_then(|length| buffer.get(..length))
        else {
            break;
        };
        line.send(Instant::now(), wire_length(packet), packet.to_vec());
        packets += 1;
    }
    packets
}

fn wait(from: &File, due: Option<Instant>) {
    let left = due.map_or(LOOK, |due| due.saturating_duration_since(Instant::now()));
    let Ok(timeout) = Timespec::try_from(left.min(LOOK)) else {
        return;
    };
    // It is looked again whatever this says.
    let _ = poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&timeout));
}

/// How long a packet is on Ethernet once it is cut up.
fn wire_length(packet: &[u8]) -> u64 {
    let field = |at: usize| match packet.get(at..at + 2) {
        Some(&[low, high]) => u64::from(u16::from_ne_bytes([low, high])),
        _ => 0,
    };
    let (headers, segment) = (field(2), field(4));
    let length = packet.len().saturating_sub(HEADER) as u64;
    let segments = match segment {
        0 => 1,
        _ => length.saturating_sub(headers).div_ceil(segment).max(1),
    };
    length + (segments - 1) * headers + segments * FRAME_OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_up_pays_headers_and_frames_for_each_piece() {
        let mut packet = vec![0; HEADER + 28 + 3000];
        assert_eq!(wire_length(&packet), 3028 + 38);
        packet[2..4].copy_from_slice(&28_u16.to_ne_bytes());
        packet[4..6].copy_from_slice(&1000_u16.to_ne_bytes());
        assert_eq!(wire_length(&packet), 3000 + 3 * (28 + 38));
    }
}
