//! What is written for people: the listing of the public API, the links between the documents, the messages that they
//! quote. It needs no server.

mod api;
mod documents;
mod links;
mod messages;
