module github.com/portway/portway/services/agent

go 1.26.0
