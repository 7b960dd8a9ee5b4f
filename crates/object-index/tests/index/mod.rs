mod basics;
mod owners;
mod support;
mod uploads;
