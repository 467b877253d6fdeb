{{- define "delaybridge.name" -}}
{{- /* With "-ingest-rabbitmq" it has 63 letters at most. */ -}}
{{- $name := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) -}}
{{- $name | trunc 47 | trimSuffix "-" -}}
{{- end }}

{{- define "delaybridge.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- define "delaybridge.labels" -}}
{{ include "delaybridge.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "delaybridge.metadata" -}}
name: {{ include "delaybridge.name" .root }}-{{ .name | default .component }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "delaybridge.labels" . | nindent 2 }}
{{- end }}

{{- define "delaybridge.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "delaybridge.listen" -}}
{{ if contains ":" .Values.listen }}[{{ .Values.listen }}]{{ else }}{{ .Values.listen }}{{ end }}
{{- end }}

{{- /* The container's part that all have. envFrom: the Secret. */}}
{{- define "delaybridge.container" -}}
image: {{ include "delaybridge.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* The pod's part that all have. */}}
{{- define "delaybridge.pod" -}}
enableServiceLinks: false
automountServiceAccountToken: false
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .Values.pod.securityContext | nindent 2 }}
{{- with .Values.pod.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.pod.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.pod.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.pod.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* A Deployment and its PodDisruptionBudget.
root, component, of: its values; args; ports: name -> number; probes: the port's name;
ready: the path that says so, /health/ready; env: name -> value; files: name -> Secret; drain: seconds; pause: seconds before SIGTERM, in which
it is taken out of its Service; scaled: another sets the replicas. */}}
{{- define "delaybridge.deployment" -}}
{{- $values := .root.Values -}}
{{- $files := .files | default dict -}}
{{- range $values.secretFiles }}{{ $files = set $files .name .secret }}{{ end -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "delaybridge.metadata" . | nindent 2 }}
spec:
  {{- if not .scaled }}
  replicas: {{ .of.replicas }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "delaybridge.selector" . | nindent 6 }}
  strategy:
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
  template:
    metadata:
      labels:
        {{- include "delaybridge.labels" . | nindent 8 }}
        {{- with $values.pod.labels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if or $values.config $values.pod.annotations }}
      annotations:
        {{- if $values.config }}
        checksum/config: {{ sha256sum $values.config }}
        {{- end }}
        {{- with $values.pod.annotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
    spec:
      {{- include "delaybridge.pod" .root | nindent 6 }}
      terminationGracePeriodSeconds: {{ add (.pause | default 0) .drain 20 }}
      {{- with $values.pod.spreadOver }}
      topologySpreadConstraints:
        {{- range . }}
        - topologyKey: {{ . }}
          maxSkew: 1
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "delaybridge.selector" $ | nindent 14 }}
        {{- end }}
      {{- end }}
      containers:
        - name: {{ .component }}
          {{- include "delaybridge.container" .root | nindent 10 }}
          args: {{ toJson .args }}
          envFrom: [{secretRef: {name: {{ $values.secret }}}}]
          {{- if or $values.config .env $values.env }}
          env:
            {{- if $values.config }}
            - {name: DELAYBRIDGE_CONFIG, value: /etc/delaybridge/delaybridge.toml}
            {{- end }}
            {{- range $name, $value := .env }}
            - {name: {{ $name }}, value: {{ $value | quote }}}
            {{- end }}
            {{- with $values.env }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          {{- end }}
          ports:
            {{- range $name, $port := .ports }}
            - {name: {{ $name }}, containerPort: {{ $port }}}
            {{- end }}
          startupProbe:
            httpGet: {path: /health/live, port: {{ .probes }}}
            periodSeconds: 2
            timeoutSeconds: 5
            failureThreshold: 60
          livenessProbe:
            httpGet: {path: /health/live, port: {{ .probes }}}
            periodSeconds: 10
            timeoutSeconds: 5
          readinessProbe:
            httpGet: {path: {{ .ready | default "/health/ready" }}, port: {{ .probes }}}
            periodSeconds: 10
            timeoutSeconds: 5
          {{- with .pause }}
          lifecycle:
            preStop:
              exec: {command: [sleep, {{ . | quote }}]}
          {{- end }}
          resources:
            {{- toYaml .of.resources | nindent 12 }}
          volumeMounts:
            - {name: tmp, mountPath: /tmp}
            {{- if $values.config }}
            - {name: config, mountPath: /etc/delaybridge, readOnly: true}
            {{- end }}
            {{- range $name, $secret := $files }}
            - {name: secret-{{ $name }}, mountPath: /run/secrets/{{ $name }}, readOnly: true}
            {{- end }}
      volumes:
        - name: tmp
          emptyDir: {sizeLimit: 64Mi}
        {{- if $values.config }}
        - name: config
          configMap: {name: {{ include "delaybridge.name" .root }}-config}
        {{- end }}
        {{- range $name, $secret := $files }}
        - name: secret-{{ $name }}
          secret: {secretName: {{ $secret }}, defaultMode: 0440}
        {{- end }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "delaybridge.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "delaybridge.selector" . | nindent 6 }}
{{- end }}

{{- /* A Service. root, component, of: its values; port: the container's port's name. */}}
{{- define "delaybridge.service" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "delaybridge.metadata" . | nindent 2 }}
  {{- with .of.service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .of.service.type }}
  selector:
    {{- include "delaybridge.selector" . | nindent 4 }}
  ports:
    - {name: {{ .port }}, port: {{ .of.service.port }}, targetPort: {{ .port }}}
{{- end }}

{{- /* The variables of a process that has a port for probes and Prometheus. */}}
{{- define "delaybridge.metrics" -}}
DELAYBRIDGE_METRICS__HOST: {{ .Values.listen | quote }}
DELAYBRIDGE_METRICS__PORT: "9645"
{{- end }}
