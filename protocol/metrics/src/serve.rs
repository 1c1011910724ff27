//! Metrics by HTTP. Who asks is given little room and time: anybody on this machine may.

use crate::{Page, Place};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::header::HeaderValue;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use leasefs_host::control::{Address, Bound};
use leasefs_host::private;
use rustix::fs::Mode;
use rustix::process::geteuid;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::timeout;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// How long a connection may last.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a request, and of an answer at a time: the least that is possible.
const MOST_BUFFERED: usize = 8 * 1024;
/// How many may ask at a time; the oldest gives way to the next.
const MOST_CALLERS: usize = 16;
/// For how long what was told is told again: asking all the time costs no more than that.
const FRESH: Duration = Duration::from_millis(500);
/// How long nobody is taken in after the kernel has failed to give a caller.
const PAUSE: Duration = Duration::from_secs(5);

/// A socket on which nobody is answered yet.
#[derive(Debug)]
pub struct Endpoint {
    socket: Socket,
    place: Place,
    name: Option<Bound>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Answers as long as it is held.
#[derive(Debug)]
pub struct Serving {
    task: JoinHandle<()>,
    _name: Option<Bound>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Endpoint {
    /// Listens. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// A message for people.
    pub async fn bind(place: &Place) -> Result<Self, String> {
        let bound = match place {
            Place::Loopback(address) => TcpListener::bind(address)
                .await
                .map(|listener| (Socket::Tcp(listener), None)),
            Place::Unix(path) => bind_unix(path),
        };
        let explain = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::AddrInUse => {
                format!("--metrics {place} is in use: choose another")
            }
            io::ErrorKind::NotFound => {
                format!("the directory of --metrics {place} is not there: make it first")
            }
            _ => format!("can't listen on --metrics {place}: {error}"),
        };
        let (socket, name) = bound.map_err(explain)?;
        Ok(Self {
            socket,
            place: place.clone(),
            name,
        })
    }

    /// Begins to answer with what `tell` puts on a page; all names begin with `prefix`. It may block.
    pub fn serve(
        self,
        prefix: &'static str,
        tell: impl Fn(&mut Page) + Send + Sync + 'static,
    ) -> Serving {
        let place = match &self.socket {
            Socket::Tcp(listener) => listener.local_addr().map(Place::Loopback),
            Socket::Unix(_) => Ok(self.place.clone()),
        };
        tracing::info!(place = %place.unwrap_or(self.place), "metrics are told at /metrics");
        let began = SystemTime::now().duration_since(UNIX_EPOCH);
        let began = began.unwrap_or_default().as_secs_f64();
        let text = move || {
            let mut page = Page::default();
            let version = ("version", env!("CARGO_PKG_VERSION").to_owned());
            page.info("build_info", "The version that runs.", version);
            page.gauge(
                "start_time_seconds",
                "When it began to tell this, since 1970.",
                began,
            );
            tell(&mut page);
            page.text(prefix)
        };
        let told = Arc::new(Told {
            text: Box::new(text),
            last: Mutex::default(),
        });
        Serving {
            task: tokio::spawn(serve(self.socket, told)),
            _name: self.name,
        }
    }
}

/// For the daemon's group too: the folder says who may come here at all.
fn bind_unix(path: &Path) -> io::Result<(Socket, Option<Bound>)> {
    let name = path.file_name().and_then(|name| name.to_str());
    let (Some(folder), Some(name)) = (path.parent(), name) else {
        return Err(io::ErrorKind::InvalidFilename.into());
    };
    let folder = private::folder_of(folder, geteuid().as_raw())?;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP;
    let (listener, bound) = Address::new(folder, name.to_owned()).bind_for(mode)?;
    Ok((Socket::Unix(listener), Some(bound)))
}

/// What is told, and what was told last.
struct Told {
    text: Box<dyn Fn() -> String + Send + Sync>,
    last: Mutex<Option<(Instant, String)>>,
}

impl Told {
    /// Blocks.
    fn now(&self) -> String {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((at, text)) if at.elapsed() < FRESH => text.clone(),
            _ => {
                let text = (self.text)();
                *last = Some((Instant::now(), text.clone()));
                text
            }
        }
    }
}

async fn serve(socket: Socket, told: Arc<Told>) {
    let mut tasks = JoinSet::new();
    let mut callers: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let told = Arc::clone(&told);
        let taken = match &socket {
            Socket::Tcp(listener) => listener
                .accept()
                .await
                .map(|(stream, _)| tasks.spawn(attend(stream, told))),
            Socket::Unix(listener) => listener
                .accept()
                .await
                .map(|(stream, _)| tasks.spawn(attend(stream, told))),
        };
        match taken {
            Ok(caller) => callers.push_back(caller),
            Err(error) => {
                tracing::warn!(%error, "the socket of the metrics fails");
                tokio::time::sleep(PAUSE).await;
            }
        }
        while tasks.try_join_next().is_some() {}
        callers.retain(|caller| !caller.is_finished());
        if callers.len() > MOST_CALLERS
            && let Some(oldest) = callers.pop_front()
        {
            oldest.abort();
        }
    }
}

async fn attend(stream: impl AsyncRead + AsyncWrite + Unpin, told: Arc<Told>) {
    let service = service_fn(|request| {
        let told = Arc::clone(&told);
        async move { Ok::<_, Infallible>(answer(&request, told).await) }
    });
    let served = http1::Builder::new()
        .keep_alive(false)
        .header_read_timeout(None)
        .max_buf_size(MOST_BUFFERED)
        .serve_connection(TokioIo::new(stream), service);
    // Whoever asks badly, or too slowly, is cut off.
    let _ = timeout(PATIENCE, served).await;
}

async fn answer(request: &Request<Incoming>, told: Arc<Told>) -> Response<String> {
    match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {
            match tokio::task::spawn_blocking(move || told.now()).await {
                Ok(text) => said(StatusCode::OK, OPEN_METRICS, text),
                Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "the log says why\n"),
            }
        }
        (_, "/metrics") => plain(StatusCode::METHOD_NOT_ALLOWED, "only GET\n"),
        _ => plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n"),
    }
}

fn plain(status: StatusCode, text: &str) -> Response<String> {
    said(status, "text/plain", text.to_owned())
}

fn said(status: StatusCode, of: &'static str, text: String) -> Response<String> {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(of));
    response
}
