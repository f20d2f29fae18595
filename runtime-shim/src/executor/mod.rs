//! The thread that does what the daemon asks, and looks for a daemon while there is none.
//!
//! It starts with the first context or managed allocation, blocks all signals, and never
//! makes the program wait: what it shares with hooks is under locks held for a moment.

mod announce;
mod issue;
mod marks;

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

pub use issue::wait_for_handed_over;
use oversub_protocol::layout::STREAM_SLOTS;
use oversub_shim_core::abi::CAPTURE_MODE_RELAXED;
use oversub_shim_core::environment::Settings;
use oversub_shim_core::lock::Lock;

use crate::connect::{self, Connection, Failure, Mapping};
use crate::context::{self, Place};
use crate::session::{self, Session};
use crate::state::{self, STREAMS};
use crate::{barrier, driver, log, process, schedule};

/// Held while the executor uses the driver. Who ends a context, or the process, takes it.
pub static ISSUE: Lock<()> = Lock::new(());

static STARTED: AtomicBool = AtomicBool::new(false);

/// First and longest wait between attempts to find a daemon, milliseconds.
const RETRY_MS: (i32, i32) = (1000, 5000);
/// Wait while launches are under way that no mark covers yet, and otherwise (or while the
/// daemon has nothing to steer), milliseconds.
const WAIT_MS: (i32, i32) = (1, 20);
/// Sessions whose first page stays mapped; then the program goes on alone.
const MAX_SESSIONS: u32 = 4096;
/// Bytes of the thread's stack.
const STACK_BYTES: usize = 512 << 10;

/// Starts the thread, once, if there is anything for it to do.
pub fn start() {
    let wanted = state::active().is_some_and(|settings| !settings.driver_only);
    if !wanted || STARTED.load(Ordering::Relaxed) || STARTED.swap(true, Ordering::AcqRel) {
        return;
    }
    let _errno = state::ErrnoKept::new();
    process::watch_forks();
    process::watch_exit();
    // SAFETY: locals, initialised by the calls before they are used. The new thread inherits
    // the mask, so no signal of the program's is ever delivered to it.
    unsafe {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
        let mut thread = 0;
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK_BYTES);
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        let result =
            libc::pthread_create(&raw mut thread, attributes.as_ptr(), run, ptr::null_mut());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
        if result != 0 {
            log::note("cannot start the executor thread; the program runs on alone");
        }
    }
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    // SAFETY: a terminated name of less than 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"oversub".as_ptr()) };
    schedule::prefer_short_turns();
    barrier::register();
    let mut mode = CAPTURE_MODE_RELAXED;
    // A capture in another thread must not make our calls fail, nor they it.
    // SAFETY: a local to read and write.
    unsafe { driver::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    let mut wait = RETRY_MS.0;
    let mut sessions = 0;
    let mut said = None;
    while let Some(settings) = state::active() {
        // If the place changes meanwhile, its generation shows it.
        let Some((place, generation)) = context::place_and_generation() else {
            pause(WAIT_MS.1);
            continue;
        };
        match begin(settings, &place) {
            Ok(connection) => {
                log::note("connected to the daemon");
                (wait, said) = (RETRY_MS.0, None);
                sessions += 1;
                serve(connection, &place, generation);
                log::note("the daemon is gone; the program runs on alone");
                if sessions == MAX_SESSIONS {
                    break;
                }
                // The next daemon may be there soon.
                pause(100);
                continue;
            }
            Err(failure) => {
                if said != Some(failure) {
                    say(failure);
                    said = Some(failure);
                }
            }
        }
        pause(wait);
        wait = (wait * 2).min(RETRY_MS.1);
    }
    ptr::null_mut()
}

fn say(failure: Failure) {
    match failure {
        Failure::NoDaemon => log::note("no daemon listens; the program runs on alone"),
        Failure::NotDaemon => log::note("what listens at OVERSUB_SOCKET is not a daemon"),
        Failure::Version => {
            log::note("the daemon speaks another protocol version: install the same on both sides");
        }
        Failure::Refused(status) => {
            log::number("the daemon refused the session, status", status.into())
        }
        Failure::Memory => log::note("the daemon's shared memory is not as promised"),
    }
}

fn pause(milliseconds: i32) {
    // SAFETY: no descriptors.
    unsafe { libc::poll(ptr::null_mut(), 0, milliseconds) };
}

/// Finds a daemon, with the place's context current in this thread. While the daemon's
/// answer is waited for, nothing is held that the program could need.
fn begin(settings: &Settings, place: &Place) -> Result<Connection, Failure> {
    let hello = {
        let _issue = ISSUE.lock();
        // SAFETY: the context exists while the lock is held.
        if !is_still(place) || !unsafe { driver::cuCtxSetCurrent(place.context) }.is_ok() {
            return Err(Failure::NoDaemon);
        }
        connect::hello(settings, place)
    };
    let connection = connect::connect(settings, &hello)?;
    let _issue = ISSUE.lock();
    if is_still(place) {
        let address = connect::register(connection.events);
        connection
            .session
            .marks_at
            .store(address, Ordering::Relaxed);
    }
    Ok(connection)
}

/// The context that was found there is still the one whose memory is managed.
fn is_still(place: &Place) -> bool {
    context::place().is_some_and(|now| now.context == place.context)
}

/// Does what the daemon asks until it is gone, or the context is.
fn serve(connection: Connection, place: &Place, generation: u64) {
    let Connection {
        socket,
        events_wake,
        commands_wake,
        events,
        commands,
        reader,
        session,
    } = connection;
    let descriptors = [
        socket.number(),
        events_wake.number(),
        commands_wake.number(),
    ];
    for (cell, descriptor) in process::DESCRIPTORS.iter().zip(descriptors) {
        cell.store(descriptor, Ordering::Relaxed);
    }
    let mut session = session;
    announce::all(&raw mut session);
    let mut issuer = issue::Issuer::new(&session, place, reader);
    let mut marks = marks::Marks::new();
    while state::active().is_some() && context::generation() == generation {
        let worked = issuer.work();
        let busy = marks.look(&session, place);
        issuer.report();
        if worked == Err(issue::Broken) {
            log::note("the daemon's command ring is corrupt");
            break;
        }
        if worked == Ok(true) {
            continue;
        }
        let wait = if busy && !session.is_calm() {
            WAIT_MS.0
        } else {
            WAIT_MS.1
        };
        if !sleep(&issuer, socket.number(), commands_wake.number(), wait) {
            break;
        }
    }
    end(&mut session, events, commands);
    for cell in &process::DESCRIPTORS {
        cell.store(-1, Ordering::Relaxed);
    }
}

/// Waits for commands. `false`: the daemon is gone.
fn sleep(issuer: &issue::Issuer<'_>, socket: i32, wake: i32, milliseconds: i32) -> bool {
    if !issuer.reader().prepare_sleep() {
        return true;
    }
    let mut waiting = [
        libc::pollfd {
            fd: socket,
            events: libc::POLLIN,
            revents: 0,
        },
        libc::pollfd {
            fd: wake,
            events: libc::POLLIN,
            revents: 0,
        },
    ];
    // SAFETY: two local entries.
    unsafe { libc::poll(waiting.as_mut_ptr(), 2, milliseconds) };
    issuer.reader().cancel_sleep();
    if waiting[1].revents & libc::POLLIN != 0 {
        let mut count = 0_u64;
        // SAFETY: eight bytes of a local.
        unsafe { libc::read(wake, (&raw mut count).cast(), 8) };
    }
    // The daemon says nothing there: anything at all is its end.
    waiting[0].revents == 0
}

/// Takes the session away from the hooks, then gives its memory back.
fn end(session: &mut Session, events: Mapping, commands: Mapping) {
    state::set_recording(false);
    session::set(ptr::null_mut());
    session.marks_at.store(0, Ordering::SeqCst);
    // Where a filter that came later refuses it, nothing can be given back: the program runs
    // on alone.
    while !barrier::across_threads() {
        pause(RETRY_MS.1);
    }
    // Every hook that may have seen the session is seen inside some slot now.
    for slot in 0..STREAM_SLOTS as u8 {
        while !STREAMS.is_empty(slot) {
            pause(1);
        }
    }
    connect::unmap_events(events);
    connect::unmap(commands);
}
