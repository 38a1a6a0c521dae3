"""Chat formats: conversion of messages to text."""

from __future__ import annotations
